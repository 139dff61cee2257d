"""torch.compile, run anew for each new kind of call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters


def fresh(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `function`, compiled for static shapes whenever the kind of call changes.

    The earlier compilation is dropped then, so that no case runs code that was made general by
    another. Compiling is outside the timed region, since a user pays for it once.

    Raises:
        NotImplementedError: By the returned function, if there is no GPU, the graph breaks, or
            torch.compile falls back to eager.
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
