"""The form of a reply and the fill bytes, which the harness and a solution's process share."""

from __future__ import annotations

from typing import Any

Reply = dict[str, Any]
"""One JSON object, with `verdict` and `reason` if the request failed."""

OUTPUT = "output"
"""The name of the output among the results; a gradient is named after its argument."""
POISONS = (float("nan"), 12_345.0)
"""The fill of fresh memory in the first and in the second run, so that an element that was never
written differs between the two."""
GUARDS = (0x45, 0xFF)
"""The fill of guard bands and of the gaps between a view's elements, in the first and in the second
run: bytes of a number, then of NaN, so that a read there shows in the second run alone."""
GARBAGE = 0xA5
"""The fill of a result's memory until the solution's process writes the result."""
