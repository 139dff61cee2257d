"""Triton's interpreter, patched where it differs from a GPU and watched where it touches memory."""
