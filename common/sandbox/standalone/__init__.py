"""One solution in a plain process, run under a profiler or a sanitizer."""
