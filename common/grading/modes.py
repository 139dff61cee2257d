"""The ways of calling a solution: autograd's modes, a stream, the inputs that take a gradient."""

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
    """The context of the call: `no_grad`, `inference_mode`, `stream`, or "" for none."""
    differentiable: tuple[str, ...]
    """The inputs that require a gradient."""
    text: str = ""
    """The words for a further mode in a verdict's reason; "" for the usual mode."""

    @property
    def forward_only(self) -> bool:
        """Whether the call has no backward."""
        return self.setting in ("no_grad", "inference_mode") or not self.differentiable


def modes(op: Op[Any], device: str) -> list[Mode]:
    """Return the further modes of the op on a device."""
    names = op.differentiable
    further = [
        Mode("no_grad", names, "under torch.no_grad()"),
        Mode("inference_mode", names, "in torch.inference_mode()"),
        *(Mode("", subset, _gradient_text(subset)) for subset in _proper_subsets(names)),
    ]
    if device == "cuda":
        further.append(Mode("stream", names, "on a stream of its own"))
    return further


def _proper_subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield proper subsets of the inputs: `x`, the weights, and parts of the weights.

    The last two are `x` with either half of the weights, as if one expert is trained and the other
    is frozen.
    """
    first, rest = names[:1], names[1:]
    if rest:
        yield first
    yield rest
    if len(rest) > 1:
        subsets = list(_separating_subsets(rest))
        yield from subsets
        yield first + subsets[0]
        yield first + tuple(name for name in rest if name not in subsets[0])


def _separating_subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield subsets such that for any two inputs `a` and `b` some subset has `a` but not `b`.

    Each input is in half of the subsets, and no two inputs are in the same subsets, so that four
    subsets are enough for six inputs. The first subset is the three weights of one side.
    """
    subsets = next(n for n in count(1) if math.comb(n, n // 2) >= len(names))
    memberships = list(zip(names, combinations(range(subsets), subsets // 2), strict=False))
    for subset in range(subsets):
        yield tuple(name for name, indices in memberships if subset in indices)


def _gradient_text(differentiable: tuple[str, ...]) -> str:
    if not differentiable:
        return "where no input takes a gradient"
    verb = "takes" if len(differentiable) == 1 else "take"
    return f"where only {', '.join(differentiable)} {verb} a gradient"
