"""The further ways of calling an op: without gradients, with some frozen, on another stream."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations
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
    """Return every way of calling the op; which inputs one of them freezes may be random."""
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
    """Yield parts of the inputs, none of them whole: `x`, all others, and a random further one."""
    if len(names) > 1:
        yield names[:1]
    yield names[1:]
    if len(names) > 2:
        parts = chain.from_iterable(combinations(names, size) for size in range(1, len(names)))
        yield secrets.choice([part for part in parts if part not in (names[:1], names[1:])])


def _frozen(differentiable: tuple[str, ...]) -> str:
    if not differentiable:
        return "where no input takes a gradient"
    return f"where a gradient is taken by {', '.join(differentiable)} alone"
