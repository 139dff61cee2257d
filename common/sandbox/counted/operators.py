"""torch's operators, counted by the shapes of what they read and write, and not computed.

An operator with large floating results returns memory of the right shape that nothing has touched.
Integers, booleans and small results are computed, so that sizes that depend on them stay right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry

from common.wire import Reply

aten = torch.ops.aten
SMALL = 1 << 20
"""Elements of a tensor that is small enough to compute with."""
NOTHING = {
    aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided,
    aten.detach, aten.lift_fresh, aten.alias, aten._local_scalar_dense, aten.is_same_size,
    aten.set_, aten.resize_,
}  # fmt: skip
"""Operators that move nothing."""
GATHERS = {
    aten.index, aten.index_select, aten.gather, aten.embedding, aten.take, aten.masked_select,
    aten._index_put_impl_, aten._unsafe_index, aten.take_along_dim,
}  # fmt: skip
"""Operators that read as many elements of their first argument as they return."""
SCATTERS = {
    aten.index_put_, aten.index_put, aten.index_add_, aten.index_copy_, aten.scatter_,
    aten.scatter_add_, aten.scatter_add, aten.index_add, aten.index_copy, aten.scatter,
}  # fmt: skip
"""Operators that write as many elements of their first argument as they are given."""


def _grouped_product(a: Any, b: Any, *rest: Any, **named: Any) -> int:
    """Return the FLOPs of `_grouped_mm`, each group of whose rows has a factor of its own."""
    return 2 * int(a.numel()) * int(b.shape[-1])


PRODUCTS = {**flop_registry, aten._grouped_mm: _grouped_product}
"""The FLOPs of operators that multiply, which are never computed."""


class Operators(TorchDispatchMode):
    """Counts every operator that runs inside of it."""

    def __init__(self, add: Callable[[Reply], None]) -> None:
        """Begin without an operator; `add` takes the work of each, as JSON."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._add = add

    def __torch_dispatch__(  # noqa: D105
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func._overloadpacket in NOTHING:
            return func(*args, **kwargs)
        inputs = list(_tensors((args, kwargs)))
        result = _result(func, args, kwargs, inputs)
        self._add(_work(func, args, kwargs, inputs, list(_tensors(result)), result))
        return result


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    yield from (each for each in tree_flatten(values)[0] if isinstance(each, torch.Tensor))


def _result(func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> Any:
    """Return the operator's result, computed or as memory of its shape."""
    if func._overloadpacket not in PRODUCTS and all(map(_cheap, inputs)):
        like = _shapes(func, args, kwargs)
        if like is not None and all(map(_cheap, _tensors(like))):
            return func(*args, **kwargs)
    written = [args[at] for at in _written(func) if at < len(args)]
    written += [kwargs[n] for n in _written_by_name(func) if kwargs.get(n) is not None]
    if written:
        if not all(each.is_floating_point() for each in _tensors(written)):
            return func(*args, **kwargs)
        return written[0] if len(written) == 1 else tuple(written)
    like = _shapes(func, args, kwargs)
    if like is None and func._overloadpacket in PRODUCTS:
        raise NotImplementedError(f"the shape of {func} cannot be told without a GPU")
    if like is None or not any(each.is_floating_point() for each in _tensors(like)):
        return func(*args, **kwargs)  # its sizes or its integers depend on values
    return tree_map(_memory, like)


def _cheap(tensor: torch.Tensor) -> bool:
    return tensor.numel() <= SMALL


def _written(func: Any) -> list[int]:
    """Return the positions of the arguments that the operator changes."""
    return [
        at
        for at, each in enumerate(func._schema.arguments)
        if each.alias_info and each.alias_info.is_write and not each.kwarg_only
    ]


def _written_by_name(func: Any) -> list[str]:
    arguments = func._schema.arguments
    return [a.name for a in arguments if a.alias_info and a.alias_info.is_write and a.kwarg_only]


def _shapes(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result without memory; None where its shape depends on values."""
    args, kwargs = tree_map(_as_meta, (args, kwargs))
    if "device" in kwargs:
        kwargs["device"] = torch.device("meta")
    if "generator" in kwargs:
        kwargs["generator"] = None
    try:
        return func(*args, **kwargs)
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return None


def _as_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return torch.device("meta") if isinstance(value, torch.device) else value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _memory(value: Any) -> Any:
    """Return memory of the shape, which nothing touches."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


# --- work -----------------------------------------------------------------------------------------


def _work(
    func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: Any, result: Any
) -> Reply:
    packet = func._overloadpacket
    written = sum({_place(each): _bytes(each) for each in outputs}.values())
    changed = {id(args[at]) for at in _written(func) if at < len(args)}
    read = {_place(t): _bytes(t) for t in inputs if not (id(t) in changed and _replaces(packet))}
    if packet in GATHERS:
        read[_place(inputs[0])] = min(written, _bytes(inputs[0]))
    if packet in SCATTERS:
        given = max((_bytes(each) for each in inputs[1:] if each.is_floating_point()), default=0)
        read.pop(_place(inputs[0]), None)
        written = min(written, given or written)
    count = PRODUCTS.get(packet)
    floating = next((t for t in [*outputs, *inputs] if t.is_floating_point()), None)
    return {
        "step": "operator",
        "operator": str(packet).removeprefix("aten."),
        "read": sum(read.values()),
        "written": written,
        "flops": int(count(*args, **kwargs, out_val=result)) if count else 0,
        "dtype": str(floating.dtype if floating is not None else "").removeprefix("torch."),
        "plain": _plain([*inputs, *outputs]),
    }


def _replaces(packet: Any) -> bool:
    """Return whether the operator overwrites what its changed argument held."""
    return packet in (aten.copy_, aten.zero_, aten.fill_, aten.normal_, aten.uniform_)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the elements in memory: those that a stride of 0 repeats count once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()


def _plain(tensors: list[torch.Tensor]) -> bool:
    """Return whether all tensors have one shape and lie whole in memory, in the same order."""
    several = [each for each in tensors if each.dim()]
    first = several[0] if several else None
    return all(
        each.shape == first.shape  # type: ignore[union-attr]
        and each.stride() == first.stride()  # type: ignore[union-attr]
        and torch.ops.aten.is_non_overlapping_and_dense(each)
        for each in several
    )
