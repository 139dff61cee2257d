"""Triton's interpreter, with patches where it differs from a GPU and checks of each access."""
