"""Adapters to NVIDIA's and others' command-line tools."""
