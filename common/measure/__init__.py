"""How long a call takes, and how long it must take at the least."""
