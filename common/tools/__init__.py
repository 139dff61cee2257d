"""Tools that examine one solution in a process of its own."""
