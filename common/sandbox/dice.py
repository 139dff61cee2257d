"""Random draws that a solution can neither foresee nor repeat: the system's, made when needed."""

from __future__ import annotations

from os import urandom


def below(count: int) -> int:
    """Return a random number from 0 up to but without `count`, which is far below 2^64."""
    return int.from_bytes(urandom(8), "little") % count
