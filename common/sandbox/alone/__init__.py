"""One solution in a plain process, for profilers and sanitizers to look at."""
