"""The harness: it finds every solution, grades it, times it and publishes the board."""
