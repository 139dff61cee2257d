"""One board case at its true shape, counted in a solution's process; a request of the harness.

torch's operators are counted by the shapes of what they read and write, and not computed.
"""

from __future__ import annotations

import ctypes
import random
import zlib
from collections.abc import Callable
from typing import Any

import torch

from common.sandbox.counted.launches import Launches
from common.sandbox.failures import judge
from common.sandbox.hollow import PRODUCTS, SMALL, Hollow, tensors_of, written_at
from common.sandbox.session import Session
from common.sandbox.true_shape import board_case, true_call
from common.spec import Case
from common.wire import Reply

aten = torch.ops.aten
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


def count(session: Session, case: str) -> Reply:
    """Count forward and backward of the board case with this name, at its true shape.

    Returns:
        By direction the steps of its work, operators and launches in order, those of forward again
        in `backward`; with a verdict and its reason where the solution fails or does not support
        the case.
    """
    found = board_case(session, case)
    ctypes.CDLL(None).mallopt(-6, 0)  # M_PERTURB: it would touch all memory
    counted: Reply = {}
    try:
        _count(session, found, counted)
    except Exception as error:
        counted |= judge(error)
    return counted


def _count(session: Session, case: Case, counted: Reply) -> None:
    seed = zlib.crc32(case.name.encode())
    call = true_call(session, case, seed)
    steps: list[Reply] = []
    launches = Launches(random.Random(seed), steps.append)
    with launches.counting(), Operators(steps.append, call.small):
        output = call.forward()
        counted["forward"] = list(steps)
        if output.requires_grad and "backward" in case.directions:
            call.backward(output)
            counted["backward"] = steps


# --- torch's operators ----------------------------------------------------------------------------


class Operators(Hollow):
    """Counts every operator that runs inside of it."""

    def __init__(self, add: Callable[[Reply], None], small: int = SMALL) -> None:
        """Begin without an operator; `add` takes the work of each, as JSON. See `Hollow`."""
        super().__init__(small)
        self._add = add

    def ran(
        self, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], result: Any
    ) -> None:
        """Add the operator's work."""
        self._add(_work(func, args, kwargs, inputs, list(tensors_of(result)), result))


def _work(
    func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: Any, result: Any
) -> Reply:
    packet = func._overloadpacket
    written = sum({_place(each): _bytes(each) for each in outputs}.values())
    changed = {id(args[at]) for at in written_at(func) if at < len(args)}
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
