"""Fresh memory filled with a number that shows, and guard bands around it."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from common.arena import BAND
from common.wire import GUARDS

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
