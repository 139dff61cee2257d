"""A solution's own process: it calls, watches and times the solution, and never holds an oracle."""
