"""torch.compile on the reference: static shapes, one graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._dynamo.utils import counters

from common import ops
from common.errors import UserError

torch._dynamo.config.recompile_limit = 64
"""Variants of one kind of call: the grad mode, and the inputs that take a gradient."""


def __getattr__(op: str) -> Callable[..., torch.Tensor]:
    try:
        return fresh(ops.load(op).reference)
    except UserError:
        raise AttributeError(op) from None


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

    @functools.wraps(function)
    def call(*inputs: Any, **options: Any) -> torch.Tensor:
        nonlocal kind, compiled
        is_new = kind != _kind(inputs, options)
        if is_new:
            kind = None
            if not any(each.is_cuda for each in inputs if isinstance(each, torch.Tensor)):
                raise NotImplementedError("needs a GPU")
            torch.compiler.reset()
            counters.clear()
            compiled = torch.compile(function, fullgraph=True, dynamic=False)
        try:
            output = compiled(*inputs, **options)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split())[:200]
            raise NotImplementedError(f"torch.compile cannot take it whole: {reason}") from error
        if is_new:
            if not counters["stats"]["unique_graphs"]:
                raise NotImplementedError("torch.compile fell back to eager")
            kind = _kind(inputs, options)
        return output

    return call


def _kind(inputs: Iterable[Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        (tuple(value.shape), value.stride(), value.dtype)
        if isinstance(value, torch.Tensor)
        else value
        for value in (*inputs, *options, *options.values())
    )
