"""Fresh memory filled with a value that shows in results, and guard bands around it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.dlpack import from_dlpack

from common.arena import BAND
from common.sandbox.launches import UncompiledMode

aten = torch.ops.aten
FRESH = frozenset({
    aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty,
    aten.new_empty_strided,
})  # fmt: skip
"""The operators that return uninitialized memory."""
_ALLOCATIONS = FRESH | {aten.resize_}
MOST_GUARDED = 512 << 20
"""The most bytes of fresh memory between bands in a call, kept until the end of the call."""
_WITHOUT_MODES = frozenset({"aten", "higher_order"})
"""The namespaces of operators that run without the mode: aten's need no mode inside, and
higher-order operators such as torch.cond cannot run with a mode."""
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Subclasses are excluded, since some have no memory of their own."""


class Poison(UncompiledMode):
    """A mode that fills fresh memory, so that elements never written show in the result.

    The fill is NaN in the first run and a number in the second run. An element that differs between
    the runs was never written. The memory of every torch function that allocates is filled.
    """

    supports_higher_order_operators = True
    """Otherwise torch.cond and other higher-order operators would raise NotImplementedError."""

    def __init__(self, value: float, guard: int, guarded: str = "cuda") -> None:
        """Fill with `value`; on a device of type `guarded`, also put guard bands around the memory.

        The bands hold the byte `guard`. Triton's interpreter needs none, since it checks every
        address.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.value, self.guarded, self._guard = value, guarded, guard
        self._fresh: list[torch.Tensor] = []
        """Fresh memory with its bands, as uint8."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True; otherwise torch.compile would not compile but run eagerly."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one of torch's functions, and fill the memory that it allocates."""
        kwargs = kwargs or {}
        packet = getattr(func, "overloadpacket", None)  # None for higher-order operators
        if packet not in _ALLOCATIONS:
            return self._run(func, args, kwargs)
        if packet is aten.resize_ and type(args[0]) in PLAIN:
            return self._resize(func, *args, **kwargs)
        fresh = self._guarded_memory(func, args, kwargs)
        if fresh is None:
            fresh = self._run(func, args, kwargs)
        fill(fresh, self.value)
        return fresh

    def _guarded_memory(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """Return the fresh memory between guard bands; None if it gets none."""
        if not any(argument.name == "device" for argument in func._schema.arguments):
            return None  # it writes to existing memory
        like = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if like is not None and type(like) not in PLAIN:
            return None
        device = kwargs.get("device") or (like.device if like is not None else "cpu")
        if torch.device(device).type != self.guarded:
            return None
        # a meta tensor: allocating twice could fail, as a solution may need half of the GPU
        meta = func(*args, **{**kwargs, "device": "meta", "pin_memory": None})
        size, guarded = meta.untyped_storage().nbytes(), sum(raw.nbytes for raw in self._fresh)
        fits = size and size + guarded <= MOST_GUARDED
        return self._between_bands(meta, device) if fits else None

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a function; a custom operator runs in this mode, so that its memory is filled too.

        torch disables a mode while its handler runs. The call is redispatched below the key of
        modes, since the operator would otherwise come back to this handler.
        """
        if func.namespace in _WITHOUT_MODES:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not tensors or not PLAIN.issuperset(map(type, tensors)):
            return func(*args, **kwargs)
        # as torch does: a GPU tensor among CPU tensors, such as scalars, decides the device
        device_types = [tensor.device.type for tensor in tensors]
        device = next((device_type for device_type in device_types if device_type != "cpu"), "cpu")
        name = torch._C._dispatch_key_for_device(device)
        key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
        with self:
            return func.redispatch(key, *args, **kwargs)

    def _resize(self, func: Any, tensor: torch.Tensor, size: Any, **kwargs: Any) -> torch.Tensor:
        """Resize a tensor in place, and fill the elements that are new in its storage."""
        storage, end = tensor.untyped_storage(), tensor.storage_offset() + math.prod(size)
        old_end = storage.nbytes() // tensor.itemsize
        if old_end < end and not storage.resizable():  # memory between bands is not resizable
            meta = tensor.new_empty(end, device="meta")
            grown = self._between_bands(meta, tensor.device)
            grown[:old_end].copy_(tensor.as_strided((old_end,), (1,), 0))
            tensor.set_(
                grown.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        func(tensor, size, **kwargs)
        if old_end < end:
            fill(tensor.as_strided((end - old_end,), (1,), old_end), self.value)
        return tensor

    def _between_bands(self, meta: torch.Tensor, device: Any) -> torch.Tensor:
        """Return a tensor like the meta tensor `meta`, whose storage lies between guard bands.

        torch cannot make a storage of a part of another storage. A storage imported by DLPack
        begins at the slice's first byte and keeps the bands alive.
        """
        size = meta.untyped_storage().nbytes()
        raw = torch.full((size + 2 * BAND,), self._guard, dtype=torch.uint8, device=device)
        self._fresh.append(raw)
        storage = from_dlpack(raw[BAND : BAND + size].__dlpack__()).untyped_storage()
        target = torch.empty(0, dtype=meta.dtype, device=device)
        return target.set_(storage, 0, meta.shape, meta.stride())

    def overrun(self) -> str | None:
        """Describe the first write to a guard band: `wrote 4 bytes after memory of its own`."""
        bands = [band for raw in self._fresh for band in (raw[:BAND], raw[-BAND:])]
        for where, band in zip(itertools.cycle(("before", "after")), bands, strict=False):
            if written := int((band != self._guard).sum()):
                return f"wrote {written} bytes {where} memory of its own"
        return None


def fill(tensor: torch.Tensor, value: float) -> None:
    """Fill a tensor with the poison value, or with the equivalent of its dtype.

    NaN becomes the largest integer or True, 0 becomes 0, another number half of the largest integer
    or False.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        # value first, since min(NaN, maximum) is NaN
        tensor.fill_(min(value, torch.finfo(tensor.dtype).max))
    elif tensor.dtype is torch.bool:
        tensor.fill_(value != value)
    else:
        largest = torch.iinfo(tensor.dtype).max
        tensor.fill_(largest if value != value else largest // 2 if value else 0)
