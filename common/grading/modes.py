"""The further ways of calling an op: without gradients, with some frozen, on another stream."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, count
from typing import Any

from common.spec import Op


@dataclass(frozen=True)
class Mode:
    """One way of calling a solution."""

    setting: str
    """Where the call runs: `no_grad`, `inference_mode`, `stream`, or "" for nothing special."""
    differentiable: tuple[str, ...]
    """The inputs that take a gradient."""
    text: str
    """The way in words, for a reason."""

    @property
    def forward_alone(self) -> bool:
        """Whether no gradient is asked for."""
        return self.setting in ("no_grad", "inference_mode") or not self.differentiable


def modes(op: Op[Any], device: str) -> list[Mode]:
    """Return every way of calling the op."""
    names = op.differentiable
    several = [
        Mode("no_grad", names, "under torch.no_grad()"),
        Mode("inference_mode", names, "in torch.inference_mode()"),
        *(Mode("", some, _frozen(some)) for some in _parts(names)),
    ]
    if device == "cuda":
        several.append(Mode("stream", names, "on a stream of its own"))
    return several


def _parts(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield parts of the inputs, none of them whole: `x`, the weights, and some of the weights.

    The last two are `x` with either half of the weights, as where one expert is trained beside a
    frozen one.
    """
    first, rest = names[:1], names[1:]
    if rest:
        yield first
    yield rest
    if len(rest) > 1:
        several = list(_apart(rest))
        yield from several
        yield first + several[0]
        yield first + tuple(name for name in rest if name not in several[0])


def _apart(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield parts so that of any two inputs each is without the other in some part.

    As each input is in half of the parts, and no two in the same ones, four are enough for six.
    The first part is the first half: the three weights of one side.
    """
    parts = next(n for n in count(1) if math.comb(n, n // 2) >= len(names))
    places = list(zip(names, combinations(range(parts), parts // 2), strict=False))
    for part in range(parts):
        yield tuple(name for name, held in places if part in held)


def _frozen(differentiable: tuple[str, ...]) -> str:
    if not differentiable:
        return "where no input takes a gradient"
    return f"where a gradient is taken by {', '.join(differentiable)} alone"
