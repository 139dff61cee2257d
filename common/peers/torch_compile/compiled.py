"""torch.compile, compiled afresh for each new kind of call; a fall back to eager is unsupported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters


def fresh(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`function` compiled for static shapes, its compilation thrown away when the call's kind
    changes: else a later case would run code made general by an earlier one.

    Compiling is outside the timed region, since a user pays for it once. Raises
    NotImplementedError where no GPU is there, the graph breaks, or nothing was compiled.
    """
    kind: Any = None
    compiled: Callable[..., torch.Tensor] = function

    def call(**arguments: Any) -> torch.Tensor:
        nonlocal kind, compiled
        if kind == _kind(arguments):
            return compiled(**arguments)
        _check_device(arguments)
        torch.compiler.reset()
        counters.clear()
        compiled = torch.compile(function, fullgraph=True, dynamic=False)
        output = _first(compiled, arguments)
        kind = _kind(arguments)
        return output

    return call


def _first(compiled: Callable[..., torch.Tensor], arguments: dict[str, Any]) -> torch.Tensor:
    try:
        output = compiled(**arguments)
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = " ".join(str(error).split())[:200]
        raise NotImplementedError(f"torch.compile cannot take it whole: {reason}") from error
    if not counters["stats"]["unique_graphs"]:
        raise NotImplementedError("torch.compile fell back to eager")
    return output


def _kind(arguments: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        (name, tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
        if isinstance(value, torch.Tensor)
        else (name, value)
        for name, value in arguments.items()
    )


def _check_device(arguments: dict[str, Any]) -> None:
    if not any(value.is_cuda for value in arguments.values() if isinstance(value, torch.Tensor)):
        raise NotImplementedError("needs a GPU")
