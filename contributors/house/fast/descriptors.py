"""Plans of kernels that take matrices by tensor descriptors, whose tensor maps are kept.

A tensor map is what the tensor memory accelerator reads of a descriptor. It follows from a matrix's
address, sizes and strides, its dtype and a tile's shape, and a plan fixes all but the address.
"""

import functools
import inspect
import threading
from types import SimpleNamespace
from typing import NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from .launch import Plan, allocates, direct


class Tiles(NamedTuple):
    """All of a tensor descriptor but the matrix's address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]


class TilePlan(Plan):
    """A plan some of whose tensors go to the kernel as descriptors."""

    def __init__(self, kernel, grid, rest, tiles, **options):
        """Launch nothing yet; `tiles` has the Tiles of such tensors by their places."""
        super().__init__(kernel, grid, rest, **options)
        self._tiles = dict(sorted(tiles.items()))

    def launch(self, tensors):
        tensors = list(tensors)
        for place, tiles in self._tiles.items():
            make_context_current(tensors[place].device)
            tensors[place] = TensorDescriptor(tensors[place], *tiles)
        return super().launch(tensors)

    def _directly(self, compiled, rest):
        """Call the launcher inside of Triton's own, which encodes each map at each launch."""
        if not self._tiles:
            return super()._directly(compiled, rest)
        if allocates(compiled.run):
            return None
        outer = inspect.getclosurevars(compiled.run.launch).nonlocals
        launch, arguments_of = direct(compiled, self._grid, rest, outer["launcher"])
        kept = map(_kept, self._tiles.values(), outer["tensordesc_meta"])
        maps = list(zip(self._tiles, kept, strict=True))[::-1]  # each moves those behind it

        def arguments_by_maps(stream, addresses):
            addresses = list(addresses)
            for place, map_of in maps:
                addresses[place : place + 1] = map_of(addresses[place])
            return arguments_of(stream, addresses)

        return launch, arguments_by_maps


def _kept(tiles, how):
    """Return a function of an address that returns a launcher's arguments for these tiles there."""
    arguments_of = triton.backends.nvidia.driver.make_tensordesc_arg
    descriptor = SimpleNamespace(
        shape=tiles.shape, strides=tiles.strides, padding="zero", round_f32_to_tf32=False
    )

    @functools.lru_cache(maxsize=256)
    def map_of(address):
        make_context_current(torch.device("cuda", torch.cuda.current_device()))
        base = SimpleNamespace(data_ptr=lambda: address)
        return arguments_of(SimpleNamespace(base=base, **vars(descriptor)), how)

    return map_of


_threads = threading.local()


def make_context_current(device):
    """Launch something once in each thread, such as autograd's, before a map is encoded there.

    CUDA makes a context a thread's own at the thread's first launch; encoding a map needs it.
    """
    if device.type == "cuda" and getattr(_threads, "device", None) != device:
        torch.zeros(1, device=device)
        _threads.device = device
