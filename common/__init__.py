"""The harness: it finds, grades and times every solution, and publishes the board."""
