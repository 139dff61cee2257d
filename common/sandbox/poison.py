"""Fresh memory filled with a number that shows, and guard bands around it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.dlpack import from_dlpack

from common.arena import BAND
from common.sandbox.graphs import Mode
from common.wire import FIRST_RUN, GUARDS, SECOND_RUN

_RESIZE = torch.ops.aten.resize_
_ALLOCATIONS = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_".split()
    )
)
MOST_KEPT = 512 << 20
"""The bytes of fresh memory that are kept until the end of a call, though it frees them."""
_WITHOUT_MODES = frozenset({"aten", "higher_order"})
"""The namespaces of operators that need no mode inside, or, as torch.cond, run with none."""
_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})


class Poison(Mode):
    """A mode that fills fresh memory, so that an element that nobody wrote shows in the result.

    The fill is NaN in the first run and a number in the second: an element that differs between
    the two was never written. Memory is filled whichever torch function allocates it.
    """

    supports_higher_order_operators = True
    """Otherwise torch.cond and its like would raise NotImplementedError."""

    def __init__(self, value: float, guarded: str = "cuda") -> None:
        """Fill with `value`, one of `POISONS`.

        On a device of type `guarded` fresh memory also stands between guard bands, which hold the
        one of `GUARDS` that belongs to the same run. Triton's interpreter needs no bands: there
        every address is checked.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.value, self.guarded = value, guarded
        self._guard = GUARDS[FIRST_RUN] if value != value else GUARDS[SECOND_RUN]
        self._fresh: list[tuple[torch.Tensor, int]] = []
        self._bytes = 0
        self._written: list[str] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True; otherwise torch.compile would step aside and run eager."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one of torch's functions, and fill the memory that it allocates."""
        kwargs = kwargs or {}
        packet = getattr(func, "overloadpacket", None)  # torch.cond and its like have none
        if packet not in _ALLOCATIONS:
            return self._run(func, args, kwargs)
        if packet is _RESIZE and type(args[0]) in _ORDINARY:
            return self._resize(func, *args, **kwargs)
        if device := self._guarded_device(func, args, kwargs):
            # the memory itself is allocated once, since a solution may need half of the GPU's
            meta = func(*args, **{**kwargs, "device": "meta", "pin_memory": None})
            fresh = self._between_bands(meta, device)
        else:
            fresh = self._run(func, args, kwargs)
        fill(fresh, self.value)
        return fresh

    def _guarded_device(self, func: Any, args: Any, kwargs: Any) -> torch.device | None:
        """Return the device of fresh memory that must stand between bands."""
        if not any(argument.name == "device" for argument in func._schema.arguments):
            return None  # it writes to memory that is there
        like = next((each for each in args[:1] if isinstance(each, torch.Tensor)), None)
        if like is not None and type(like) not in _ORDINARY:
            return None
        device = kwargs.get("device") or (like.device if like is not None else "cpu")
        device = torch.device(device)
        return device if device.type == self.guarded else None

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a function, a custom operator with this mode on, so that its memory is filled too.

        torch takes a mode off while its handler runs. The operator's kernel is called past the key
        of modes, since the operator would otherwise come back to this handler.
        """
        if func.namespace in _WITHOUT_MODES:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not tensors or not _ORDINARY.issuperset(map(type, tensors)):
            return func(*args, **kwargs)
        # as torch does: a CPU tensor beside one of a GPU, such as a factor, does not decide
        devices = [tensor.device.type for tensor in tensors]
        device = next((each for each in devices if each != "cpu"), "cpu")
        name = torch._C._dispatch_key_for_device(device)
        key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
        with self:
            return func.redispatch(key, *args, **kwargs)

    def _resize(self, func: Any, tensor: torch.Tensor, size: Any, **kwargs: Any) -> torch.Tensor:
        """Resize a tensor in place, and fill the elements that its storage did not have before."""
        storage, end = tensor.untyped_storage(), tensor.storage_offset() + math.prod(size)
        held = storage.nbytes() // tensor.itemsize
        if held < end and not storage.resizable():  # as memory between bands is not
            meta = tensor.new_empty(end, device="meta")
            grown = self._between_bands(meta, tensor.device)
            grown[:held].copy_(tensor.as_strided((held,), (1,), 0))
            tensor.set_(
                grown.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        func(tensor, size, **kwargs)
        if held < end:
            fill(tensor.as_strided((end - held,), (1,), held), self.value)
        return tensor

    def _between_bands(self, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a tensor like the outline, in memory between bands, at the start of its storage.

        torch has no storage that is a part of another; what it takes over by DLPack begins where
        the slice does, and keeps the bands alive.
        """
        size = meta.untyped_storage().nbytes()
        if not size:
            return torch.empty_like(meta, device=device)
        if self._bytes + size > MOST_KEPT:
            self._check_unused()
        raw = torch.full((size + 2 * BAND,), self._guard, dtype=torch.uint8, device=device)
        self._fresh.append((raw, size))
        self._bytes += size
        storage = from_dlpack(raw[BAND : BAND + size].__dlpack__()).untyped_storage()
        target = torch.empty(0, dtype=meta.dtype, device=device)
        return target.set_(storage, 0, meta.shape, meta.stride())

    def _check_unused(self) -> None:
        """Check the bands of memory that the solution has freed, and free it.

        A solution that makes large tensors one after the other would else hold all at once.
        """
        if torch.cuda.is_available():
            if torch.cuda.is_current_stream_capturing():
                return
            torch.cuda.synchronize()
        unused = [each for each in self._fresh if _is_unused(each[0])]
        if written := self._beside(unused):
            self._written.append(written)
        freed = {id(each) for each in unused}
        self._fresh[:] = [each for each in self._fresh if id(each) not in freed]
        self._bytes -= sum(size for _, size in unused)

    def overrun(self) -> str | None:
        """Describe the first write beside fresh memory: `wrote 4 bytes after memory of its own`."""
        return self._written[0] if self._written else self._beside(self._fresh)

    def _beside(self, fresh: Sequence[tuple[torch.Tensor, int]]) -> str | None:
        bands = [band for raw, size in fresh for band in (raw[:BAND], raw[BAND + size :])]
        if not bands:
            return None
        counts = torch.stack([(band != self._guard).sum() for band in bands]).tolist()
        for where, written in zip(itertools.cycle(("before", "after")), counts, strict=False):
            if written:
                return f"wrote {written} bytes {where} memory of its own"
        return None


def _is_unused(raw: torch.Tensor) -> bool:
    """Return whether nothing but this tensor uses its memory.

    Its storage then has two uses: by the tensor, and by Python while it is asked.
    """
    storage = raw.untyped_storage()
    return bool(torch._C._storage_Use_Count(storage._cdata) <= 2)


def fill(tensor: torch.Tensor, value: float) -> None:
    """Fill a tensor with the poison, or with what stands for it in another dtype.

    NaN becomes the largest integer and True, a number half of that integer and False.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(min(value, torch.finfo(tensor.dtype).max))  # NaN stays first
    elif tensor.dtype is torch.bool:
        tensor.fill_(value != value)
    else:
        most = torch.iinfo(tensor.dtype).max
        tensor.fill_(most if value != value else most // 2)
