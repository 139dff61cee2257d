"""The harness: finds every solution, grades it, times it, publishes the board."""
