"""The cases of each plot over sequence length, token count or masks: parameters that they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sweep:
    """Cases whose parameters are `where` but for the one on the x axis."""

    name: str
    op: str
    title: str
    x_label: str
    x: str
    where: Mapping[str, Any]
    rates: bool = False
    log2: bool = True
    default: int = 1
    """The x of a case whose parameters do not name it."""

    def at(self, params: Mapping[str, Any]) -> int:
        """Return the x of a case's parameters."""
        return int(params.get(self.x, self.default))


def _masks(op: str, layer: str, widths: list[int]) -> Iterator[Sweep]:
    """Yield the sweeps of a masked op over tokens, over spans, and over random masks."""
    where: dict[str, Any] = {"dtype": "bfloat16", "widths": widths}
    yield Sweep(
        f"{op}-tokens", op, f"{op}: time over token count",
        f"tokens ({layer}, bfloat16, one visual span)", "tokens", where,
    )  # fmt: skip
    where = {**where, "tokens": 16384}
    yield Sweep(
        f"{op}-spans", op, f"{op}: time over the number of visual spans",
        f"visual spans among 16,384 tokens ({layer}, bfloat16)", "sequences", where,
    )  # fmt: skip
    yield Sweep(
        f"{op}-random", op, f"{op}: time over the visual tokens of a random mask",
        f"visual tokens in percent of 16,384 ({layer}, bfloat16)", "percent",
        {**where, "mask": "random"}, log2=False, default=50,
    )  # fmt: skip


SWEEPS = (
    Sweep(
        "rope-bandwidth", "rope", "rope: bandwidth over sequence length",
        "sequence length (b 1, h 8, d 256, float32)", "s",
        {"dtype": "float32", "b": 1, "h": 8, "d": 256, "d2": 256, "angles": "model"}, rates=True,
    ),
    Sweep(
        "rope-length", "rope", "rope: time over sequence length",
        "sequence length (b 16, h 10, d 512, of which 256 turn, float32)", "s",
        {"dtype": "float32", "b": 16, "h": 10, "d": 512, "d2": 256}, log2=False,
    ),
    *_masks("masked_linear", "1024 to 1024 features", [1024, 1024]),
    *_masks("masked_ffn", "width 1024, intermediate 2048", [1024, 2048]),
)  # fmt: skip
"""An option that `where` does not name has its default; see `Case.params`."""
