"""Memory that the harness owns and one worker maps: shared memory on a CPU, CUDA IPC on a GPU.

All tensors that both processes use lie in an arena, each in its own slot: a call's arguments, its
upstream gradient, and memory for the results. A slot is sent as plain JSON.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from common.wire import TensorSlot, Ticket

Key = TypeVar("Key", bound=Hashable)
ALIGNMENT = 512
BAND = 1024
"""The minimum bytes of a guard band, which lies before, between and after the tensors."""
FAR = 1024
"""The ratio of a storage's bytes to its elements' bytes above which only the elements are copied
and compared: a view whose rows lie 2 GB apart has no physical pages between the rows."""


def end_of(slot: TensorSlot) -> int:
    """Return the offset after a slot and its guard band, where the next slot may start."""
    return slot.start + -(-slot.nbytes // ALIGNMENT) * ALIGNMENT + BAND


def is_far(tensor: torch.Tensor, nbytes: int | None = None) -> bool:
    """Return whether the memory between the elements is too large to touch; see `FAR`.

    The memory is that of the tensor's storage, or `nbytes` of it.
    """
    nbytes = tensor.untyped_storage().nbytes() if nbytes is None else nbytes
    return nbytes > FAR * max(tensor.nbytes, tensor.itemsize)


def slot_like(tensor: torch.Tensor, start: int) -> TensorSlot:
    """Return a slot for the tensor's whole storage, which preserves a view's strides and offset."""
    return TensorSlot(
        start=start,
        nbytes=tensor.untyped_storage().nbytes(),
        dtype=dtype_name(tensor.dtype),
        size=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        offset=int(tensor.storage_offset()),
    )


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a view's first element and of the end of its last element."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first, elements = tensor.data_ptr(), last + 1 if tensor.numel() else 0
    return first, first + elements * tensor.itemsize


def lay_out(tensors: Iterable[tuple[Key, torch.Tensor]]) -> dict[Key, TensorSlot]:
    """Return a slot for each tensor, one after the other, with guard bands around them."""
    slots: dict[Key, TensorSlot] = {}
    start = BAND
    for key, tensor in tensors:
        slots[key] = slot_like(tensor, start)
        start = end_of(slots[key])
    return slots


def dtype_name(dtype: torch.dtype) -> str:
    """Return the dtype's name in torch, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


MappingCounter = tuple[bytes, int]
"""torch's reference counter of one mapping: the shared-memory file's handle and an offset."""
_POOLS = threading.Lock()
"""Held because torch aborts if one thread frees a pool while another allocates from a pool."""


class Arena:
    """One process's mapping of the memory."""

    def __init__(self, device: str, nbytes: int) -> None:
        """Allocate the memory, in the harness, on `device`: `cpu` or `cuda`."""
        self.nbytes = nbytes
        self.fd: int | None = None
        self.counters: list[MappingCounter] = []
        """The counters of the mappings that workers have not released."""
        self._unused = 0
        """On a GPU, the number of references to the storage while no slot has a tensor."""
        if device == "cpu":
            self.fd = os.memfd_create("study", os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, nbytes)
            # if a worker truncated the file, SIGBUS would kill the harness
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._map: Any = mmap.mmap(self.fd, nbytes)
        else:
            # CUDA IPC shares the whole segment of a tensor, so the tensor gets a segment of its own
            with _POOLS:
                self._pool: Any = torch.cuda.MemPool()
                with torch.cuda.use_mem_pool(self._pool):
                    self._map = torch.empty(nbytes, dtype=torch.uint8, device=device)

    @property
    def fds(self) -> list[int]:
        """The file descriptors that are sent with the ticket."""
        return [] if self.fd is None else [self.fd]

    def ticket(self) -> Ticket:
        """Return the data that a worker needs, in addition to `fds`, to map the same memory."""
        if self.fd is not None:
            return Ticket(self.nbytes)
        parts = self._map.untyped_storage()._share_cuda_()
        self.counters.append(parts[4:6])
        return Ticket(self.nbytes, parts)

    @classmethod
    def mapped(cls, ticket: Ticket, fd: int | None) -> Arena:
        """Map the harness's memory in a worker, from the ticket and the file descriptor."""
        arena = cls.__new__(cls)
        arena.nbytes, arena.fd = ticket.nbytes, fd
        if fd is not None:
            arena._map = mmap.mmap(fd, arena.nbytes)
        else:
            assert ticket.cuda
            torch.cuda.init()
            storage = torch.UntypedStorage._new_shared_cuda(*ticket.cuda)
            arena._map = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
            arena._unused = arena._users()
        return arena

    def bytes_of(self, slot: TensorSlot) -> torch.Tensor:
        """Return the slot's storage as uint8."""
        return self.bytes_at(slot.start, slot.nbytes)

    def elements(self, slot: TensorSlot) -> torch.Tensor:
        """Return the slot's storage as integers with the same bits, `[elements]`."""
        return self.bytes_of(slot).view(_INTEGERS[getattr(torch, slot.dtype).itemsize])

    def content(self, slot: TensorSlot) -> torch.Tensor:
        """Return the part of the slot that a copy of its tensor needs; see `content` below."""
        tensor = self.tensor(slot)
        return integers(tensor) if is_far(tensor, slot.nbytes) else self.bytes_of(slot)

    def tensor(self, slot: TensorSlot) -> torch.Tensor:
        """Return the slot's tensor, as the view that the slot was made for.

        It has its own version counter: writes to one slot do not mark others.
        """
        dtype = getattr(torch, slot.dtype)
        if isinstance(self._map, torch.Tensor):
            view = torch.empty(0, dtype=dtype, device=self._map.device)
            start = slot.start // dtype.itemsize + slot.offset
            return view.set_(self._map.untyped_storage(), start, slot.size, slot.stride)
        if not slot.nbytes:
            return torch.empty(slot.size, dtype=dtype, device="cpu")
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=slot.nbytes, offset=slot.start)
        return raw.view(dtype).as_strided(slot.size, slot.stride, slot.offset)

    def bytes_at(self, start: int, nbytes: int) -> torch.Tensor:
        """Return a part of the memory as uint8."""
        return self.tensor(TensorSlot(start, nbytes, "uint8", (nbytes,), (1,)))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor lies in this memory."""
        first = self.bytes_at(0, 1).data_ptr()
        return bool(first <= tensor.data_ptr() < first + self.nbytes)

    def band(self, slot: TensorSlot | None) -> torch.Tensor:
        """Return the guard band behind a slot, or that before the first slot, as uint8."""
        if slot is None:
            return self.bytes_at(0, BAND)
        end = slot.start + slot.nbytes
        return self.bytes_at(end, end_of(slot) - end)

    def settle(self) -> None:
        """Wait until all writes are done: the other process does not share this CUDA stream."""
        if isinstance(self._map, torch.Tensor):
            torch.cuda.synchronize()

    def still_used(self, tensors: dict[str, torch.Tensor]) -> set[str]:
        """Remove the tensors from the dict; return the names of those that are still alive.

        A tensor is alive if anything else refers to it or to a view of it. On a GPU all tensors
        have one storage, so that all count as alive if any tensor of this memory is.
        """
        if isinstance(self._map, torch.Tensor):
            names = set(tensors)
            tensors.clear()
            return names if self._users() > self._unused else set()
        storages = {name: StorageWeakRef(each.untyped_storage()) for name, each in tensors.items()}
        tensors.clear()
        return {name for name, storage in storages.items() if not storage.expired()}

    def _users(self) -> int:
        """Return the number of references to the storage of the GPU's memory."""
        return int(torch._C._storage_Use_Count(self._map.untyped_storage()._cdata))

    def close(self) -> Callable[[], bool]:
        """Free the memory, or this process's mapping of it.

        Return a function that returns whether nothing in this process uses the memory any more.
        """
        on_gpu = isinstance(self._map, torch.Tensor)
        storage = StorageWeakRef(self._map.untyped_storage()) if on_gpu else None
        with _POOLS:
            self._map = self._pool = None
            if self.fd is None:
                torch.cuda.ipc_collect()
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        return lambda: storage is None or bool(storage.expired())


def reclaim(counters: list[MappingCounter]) -> None:
    """Release the mappings of a process that has ended; otherwise torch waits for them forever."""
    for counter in counters:
        torch.UntypedStorage._release_ipc_counter_cuda(*counter)
    if counters:
        with _POOLS:
            torch.cuda.ipc_collect()
    counters.clear()


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's whole storage as uint8, including the gaps between a view's elements."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def content(tensor: torch.Tensor) -> torch.Tensor:
    """Return the data that a copy of the tensor needs: its whole storage as uint8.

    Where the elements lie far apart (see `FAR`), return only the elements, as integers.
    """
    return integers(tensor) if is_far(tensor) else storage_bytes(tensor)


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype with the same bits, by an element's bytes."""


def integers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements' bits as integers: NaN then equals itself, and 0 differs from -0."""
    return tensor.detach().view(_INTEGERS[tensor.itemsize])


def words(raw: torch.Tensor) -> torch.Tensor:
    """Return bytes as int64, which compare faster, if their number is a multiple of 8."""
    evenly = raw.dtype is torch.uint8 and raw.dim() == 1 and raw.numel() % 8 == 0
    return raw.view(torch.int64) if evenly and raw.is_contiguous() else raw


def elements_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's whole storage as integers with the same bits, `[elements]`."""
    return storage_bytes(tensor).view(_INTEGERS[tensor.itemsize])
