"""torch.compile, run anew for each new kind of call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters

torch._dynamo.config.recompile_limit = 64
"""Variants of one kind of call: the grad mode, and the inputs that take a gradient."""


def fresh(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `function`, compiled for static shapes whenever the kind of call changes.

    The earlier compilation is dropped then, so that no case runs code that was made general by
    another; the variants of one kind, with gradients and without, are kept beside each other.
    Compiling is outside the timed region, since a user pays for it once.

    Raises:
        NotImplementedError: By the returned function, if there is no GPU, the graph breaks, or
            torch.compile falls back to eager.
    """
    kind: Any = None
    compiled: Callable[..., torch.Tensor] = function

    def call(**arguments: Any) -> torch.Tensor:
        nonlocal kind, compiled
        is_new = kind != _kind(arguments)
        if is_new:
            kind = None
            _check_device(arguments)
            torch.compiler.reset()
            counters.clear()
            compiled = torch.compile(function, fullgraph=True, dynamic=False)
        try:
            output = compiled(**arguments)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split())[:200]
            raise NotImplementedError(f"torch.compile cannot take it whole: {reason}") from error
        if is_new:
            if not counters["stats"]["unique_graphs"]:
                raise NotImplementedError("torch.compile fell back to eager")
            kind = _kind(arguments)
        return output

    return call


def _kind(arguments: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        (name, tuple(value.shape), value.stride(), value.dtype)
        if isinstance(value, torch.Tensor)
        else (name, value)
        for name, value in arguments.items()
    )


def _check_device(arguments: dict[str, Any]) -> None:
    if not any(value.is_cuda for value in arguments.values() if isinstance(value, torch.Tensor)):
        raise NotImplementedError("needs a GPU")
