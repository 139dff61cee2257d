"""Compilation without a GPU: kernels are compiled for a named target and never run."""
