"""torch.compile on the reference: static shapes, one graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters

from common import ops
from common.errors import UserError

torch._dynamo.config.recompile_limit = 64
"""Variants of one kind of call: the grad mode, and the inputs that take a gradient."""


def __getattr__(op: str) -> Callable[..., Any]:
    try:
        return Compiled(ops.load(op).reference)
    except UserError:
        raise AttributeError(op) from None


class Compiled:
    """A function, compiled for static shapes whenever the kind of call changes.

    The earlier compilation is dropped then, so that no case runs code that was made general by
    another; the variants of one kind, with gradients and without, are kept beside each other.
    Compiling is outside the timed region, since a user pays for it once.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Compile nothing yet."""
        functools.update_wrapper(self, function)
        self._function, self._kind, self._compiled = function, object(), function

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Call the function, compiled."""
        return self.of(*inputs, **options)(*inputs, **options)

    def of(self, *inputs: Any, **options: Any) -> Callable[..., Any]:
        """Return the compiled function for a kind of call; a new kind is called once.

        Raises:
            NotImplementedError: There is no GPU, the graph breaks, or torch.compile falls back to
                eager.
        """
        kind = tuple(
            (tuple(value.shape), value.stride(), value.dtype)
            if isinstance(value, torch.Tensor)
            else value
            for value in (*inputs, *options, *options.values())
        )
        if kind == self._kind:
            return self._compiled
        if not any(each.is_cuda for each in inputs if isinstance(each, torch.Tensor)):
            raise NotImplementedError("needs a GPU")
        torch.compiler.reset()
        counters.clear()
        self._kind = object()
        self._compiled = torch.compile(self._function, fullgraph=True, dynamic=False)
        try:
            self._compiled(*inputs, **options)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split())[:200]
            raise NotImplementedError(f"torch.compile cannot take it whole: {reason}") from error
        if not counters["stats"]["unique_graphs"]:
            raise NotImplementedError("torch.compile fell back to eager")
        self._kind = kind
        return self._compiled
