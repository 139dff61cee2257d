"""Random draws of the operating system, which a solution can neither foresee nor repeat."""

from __future__ import annotations

from os import urandom


def below(count: int) -> int:
    """Return a random integer in `range(count)`; `count` is far below 2^64."""
    return int.from_bytes(urandom(8), "little") % count
