"""What the harness and a solution's process agree on: the form of a reply, and the fill bytes."""

from __future__ import annotations

from typing import Any

Reply = dict[str, Any]
"""One JSON object; `verdict` and `reason` are set where the request failed."""

POISONS = (float("nan"), 12_345.0)
"""Fresh memory holds the first value in the first run and the second in the second run, so that an
element that nobody wrote differs between the two."""
GUARDS = (0x45, 0xFF)
"""Guard bands and the gaps between a view's elements hold the first byte in the first run and the
second in the second run: a number, then NaN, so that a read there shows in the second run alone."""
GARBAGE = 0xA5
"""A result's memory holds this byte until the solution's process writes the result."""
