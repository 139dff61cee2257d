"""One graded call, in a solution's process: forward, backward, and their results' delivery."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from common.arena import BAND, dtype_name
from common.sandbox import backend
from common.sandbox.failures import Refused
from common.sandbox.session import Session
from common.wire import GUARDS, POISONS, Reply

_RESIZE = torch.ops.aten.resize_
_ALLOCATIONS = {
    getattr(torch.ops.aten, name)
    for name in (
        "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_".split()
    )
}


class Poison(TorchDispatchMode):
    """A mode that fills fresh memory, so that an element that nobody wrote shows in the result.

    The fill is NaN in the first run and a number in the second: an element that differs between
    the two was never written. Memory is filled whichever torch function allocates it.
    """

    def __init__(self, value: float, guarded: str = "cuda") -> None:
        """Fill with `value`, one of `POISONS`.

        On a device of type `guarded` fresh memory also stands between guard bands, which hold the
        one of `GUARDS` that belongs to the same run. Triton's interpreter needs no bands: there
        every address is checked.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.value, self.guarded = value, guarded
        self._guard = GUARDS[0] if value != value else GUARDS[1]
        self._fresh: list[tuple[torch.Tensor, int]] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True; otherwise torch.compile would step aside and run eager."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one of torch's functions, and fill the memory that it allocates."""
        fresh = func(*args, **(kwargs or {}))
        if func.overloadpacket in _ALLOCATIONS:
            if fresh.device.type == self.guarded and func.overloadpacket is not _RESIZE:
                fresh = self._between_bands(fresh)
            fill(fresh, self.value)
        return fresh

    def _between_bands(self, fresh: torch.Tensor) -> torch.Tensor:
        size = fresh.untyped_storage().nbytes()
        raw = torch.full((size + 2 * BAND,), self._guard, dtype=torch.uint8, device=fresh.device)
        self._fresh.append((raw, size))
        start = BAND // fresh.itemsize
        target = torch.empty(0, dtype=fresh.dtype, device=fresh.device)
        return target.set_(raw.untyped_storage(), start, fresh.shape, fresh.stride())

    def overrun(self) -> str | None:
        """Describe the first write beside fresh memory: `wrote 4 bytes after memory of its own`."""
        bands = [band for raw, size in self._fresh for band in (raw[:BAND], raw[BAND + size :])]
        if not bands:
            return None
        counts = torch.stack([(band != self._guard).sum() for band in bands]).tolist()
        for where, written in zip(itertools.cycle(("before", "after")), counts, strict=False):
            if written:
                return f"wrote {written} bytes {where} memory of its own"
        return None


def fill(tensor: torch.Tensor, value: float) -> None:
    """Fill a tensor with the poison, or with what stands for it in another dtype.

    NaN becomes the largest integer and True, a number half of that integer and False.
    """
    if tensor.is_floating_point():
        tensor.fill_(value)
    elif tensor.dtype is torch.bool:
        tensor.fill_(value != value)
    elif not tensor.is_complex():
        most = torch.iinfo(tensor.dtype).max
        tensor.fill_(most if value != value else most // 2)


def forward(
    session: Session, call: Reply, result: Reply, poison: float | None, backwards: bool = False
) -> Reply:
    """Call the solution once and copy its output into the slot `result`.

    Args:
        session: The solution's session; keeps the output for `backward`.
        call: The arguments; see `grading.calls.call_json`.
        result: The slot of the output.
        poison: What fresh memory holds; None stands for NaN, which JSON lacks.
        backwards: Under the interpreter, run the programs of a launch from the last to the first.

    Returns:
        The output's shape and dtype, and whether it is differentiable.
    """
    session.backwards = backwards
    session.poison = POISONS[0] if poison is None else poison
    session.inputs, options = session.bind(call)
    with checks(session):
        assert session.function is not None
        output: torch.Tensor = session.function(**session.inputs, **options)
        session.check_output(output)
        session.output = output
    return _deliver(session, output, result) | {"differentiable": output.requires_grad}


def backward(session: Session, upstream: Reply, results: Reply) -> Reply:
    """Copy the gradients of the last forward into their slots.

    Returns:
        By input the gradient's shape and dtype, or None where autograd gives no gradient.
    """
    assert session.output is not None
    inputs = {name: session.inputs[name] for name in results}
    gradient = session.tensor(upstream)
    with checks(session):
        gradients = torch.autograd.grad(
            session.output, list(inputs.values()), gradient, allow_unused=True
        )
        session.output = None
    return {
        name: None if grad is None else _deliver(session, grad, results[name])
        for name, grad in zip(inputs, gradients, strict=True)
    }


@contextlib.contextmanager
def checks(session: Session) -> Iterator[None]:
    """Poison fresh memory and check addresses while a solution's code runs inside.

    In the interpreter every address that a kernel touches is held against its launch's arguments;
    on a GPU the guard bands around fresh memory are compared at the end.

    Raises:
        Refused: OUT_OF_BOUNDS, also where the solution swallowed the exception of its own access.
    """
    log = backend.begin_watch(session.inputs, session.backwards)
    try:
        with Poison(session.poison) as poison:
            yield
            if _get_current_dispatch_mode() is not poison:
                session.refuse("the mode that poisons fresh memory was ended")
        if written := poison.overrun():
            raise Refused("OUT_OF_BOUNDS", written)
    finally:
        session.hold()
        if log and not backend.is_watched_by(log):
            session.refuse("the watch over memory was replaced")
        if log and (fault := log.fault()):
            raise Refused("OUT_OF_BOUNDS", fault) from None


def _deliver(session: Session, tensor: torch.Tensor, result: Reply) -> Reply:
    """Copy a result into its slot if it has the slot's shape and dtype; return both.

    Raises:
        Refused: RUNTIME_ERROR, where the result is on another device; TAMPERED, where it changed
            after it was returned.
    """
    target = session.tensor(result)
    if tensor.device.type != target.device.type:
        reason = f"a result lies on {tensor.device.type}, expected {target.device.type}"
        raise Refused("RUNTIME_ERROR", reason)
    if tensor.shape == target.shape and tensor.dtype == target.dtype:
        with torch.no_grad():
            target.copy_(tensor.detach())
            # work queued on the call's stream is in the copy; work on another may come later
            backend.synchronize()
            same = (target == tensor) | ((target != target) & (tensor != tensor))
            if not bool(same.all()):
                raise Refused("TAMPERED", "a result changed after it was returned")
    return {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}
