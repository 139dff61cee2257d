"""Calls at a case's true shape without the memory and the arithmetic of its floating tensors.

What a launch is compiled for depends on shapes, strides, alignment and integers, such as the count
that a mask gives. So integers and booleans are computed; floating results are fresh memory that
nobody touches, which an operating system does not provide before that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only


class Hollow(TorchDispatchMode):
    """Return fresh memory in place of floating results."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run what makes integers or views, and nothing of what makes floating values."""
        kwargs = kwargs or {}
        aliases = [each.alias_info for each in func._schema.returns]
        if all(aliases) and not any(each.is_write for each in aliases):
            return func(*args, **kwargs)  # a view
        written = [each for each in (*args, kwargs.get("out")) if isinstance(each, torch.Tensor)]
        if any(aliases):
            floats = bool(written) and written[0].is_floating_point()
            return written[0] if floats and func._schema.name[-1] == "_" else func(*args, **kwargs)
        try:
            shapes = func(*tree_map(_meta, args), **{k: _meta(v) for k, v in kwargs.items()})
        except (NotImplementedError, RuntimeError, TypeError):
            return func(*args, **kwargs)
        if not _floating(shapes):
            return func(*args, **kwargs)
        return tree_map_only(torch.Tensor, _fresh, shapes)


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, torch.Generator):
        return None
    return torch.device("meta") if isinstance(value, torch.device) else value


def _floating(results: Any) -> bool:
    found = results if isinstance(results, list | tuple) else [results]
    tensors = [each for each in found if isinstance(each, torch.Tensor)]
    return bool(tensors) and all(each.is_floating_point() for each in tensors)


def _fresh(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")
