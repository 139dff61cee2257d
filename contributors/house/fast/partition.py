"""The partition of a mask, made on the device: the tokens of either kind together, in whole tiles.

    mask   1 0 1 1   1 1 1 1   0 0 1 0        tiles of 4 tokens
    order  0 2 3 4 | 5 6 7 10 | 1 8 9 11 | -1 -1 -1 -1
    ends   8, 12

`order` says where each row of the sorted tokens comes from, `ends` where the visual ones end, and
all. Each kind begins a tile of its own, so that a tile has one kind of token and takes one weight;
-1 fills the last ones. Tokens of a kind keep their order, so that those of a span lie together, and
one copy fetches a tile. The host does not know how many tiles either kind has, but a bound of their
sum: one more than the tokens fill, which a mask may leave unused, as here. Memory has that size,
programs read `ends`, and nothing waits for the device.
"""

import weakref
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .forms import gpu
from .launch import Recorded, ceil_div
from .operators import define

SHORTEST, LONGEST = 4096, 32768
"""Tokens that a program counts at once, from and to."""


class Partition(NamedTuple):
    """The sorted tokens of one mask; a `plan`.

    `order`, int32 `[rows + 2]`, has each row's token, -1 for padding, then the two ends.
    """

    tokens: int
    tile: int  # rows of a tile
    order: torch.Tensor | None = None

    @property
    def rows(self):
        """The rows of all masks of this length: each kind may fill part of a tile."""
        return (ceil_div(self.tokens, self.tile) + 1) * self.tile


@triton.jit
def _sort_kernel(
    mask, order, tokens, stride, rows,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, TILE: tl.constexpr, TRIGGERS: tl.constexpr,
):  # fmt: skip
    """Give BLOCK tokens their rows; tokens of a kind keep their order.

    Each program counts the whole mask for itself, which takes less time than a second launch.
    Bytes: (tokens / BLOCK) * tokens, nearly all of them from L2, and 4 * rows written.
    """
    if TRIGGERS:  # the next kernel may begin, and waits where it needs the order
        tl.extra.cuda.gdc_launch_dependents()
    first, visuals, before = tl.program_id(0) * BLOCK, 0, 0
    for start in range(0, tokens, AT_ONCE):
        token = start + tl.arange(0, AT_ONCE)
        visual = tl.load(mask + token.to(tl.int64) * stride, token < tokens, 0).to(tl.int32)
        visuals += tl.sum(visual)
        before += tl.sum(tl.where(token < first, visual, 0))
    end = tl.cdiv(visuals, TILE) * TILE
    last = end + tokens - visuals
    token = first + tl.arange(0, BLOCK)
    visual = tl.load(mask + token.to(tl.int64) * stride, token < tokens, 0).to(tl.int32)
    rank = before + tl.cumsum(visual) - visual  # how many visual tokens come before
    tl.store(order + tl.where(visual != 0, rank, end + token - rank), token, token < tokens)
    if first == 0:
        gap = tl.arange(0, 2 * TILE)
        tl.store(order + visuals + gap, -1, visuals + gap < end)
        tl.store(order + last + gap, -1, last + gap < rows)
        tl.store(order + rows, end)
        tl.store(order + rows + 1, tl.cdiv(last, TILE) * TILE)


# One kernel for all lengths; the other one knows whether 16 divides a length, for wide loads.
_sort_few_kernel = triton.jit(_sort_kernel.fn, do_not_specialize=["tokens", "rows"])


def check_mask(mask):
    """Raise ValueError unless a mask is bool `[tokens]`."""
    if mask.dtype != torch.bool or len(mask.shape) != 1:
        raise ValueError(f"mask is {list(mask.shape)} of {mask.dtype}, not bool [tokens]")


@Recorded
def _sort(launch, how, mask):
    check_mask(mask)
    (tile,), (tokens,), (stride,) = how, mask.shape, mask.stride()
    rows, few = Partition(tokens, tile).rows, tokens <= SHORTEST
    result = mask.new_empty(rows + 2, dtype=torch.int32)
    block = 256 if few else 1024
    at_once = min(max(triton.next_power_of_2(tokens), SHORTEST), LONGEST)
    launch(
        _sort_few_kernel if few else _sort_kernel, (max(ceil_div(tokens, block), 1),),
        mask, result, tokens, stride, rows,
        BLOCK=block, AT_ONCE=at_once, TILE=tile, TRIGGERS=gpu().hopper,
        num_warps=4 if few else 8 if at_once < 16384 else 16,
    )  # fmt: skip
    return (result,)


def _fake_sort(mask, tile):
    check_mask(mask)
    return mask.new_empty(Partition(mask.shape[0], tile).rows + 2, dtype=torch.int32)


# Compiled for training, layers with the same mask share its result, in both directions. None is
# kept for a next call: CUDA graphs (mode="reduce-overhead") own the memory that operators make.
sorted_operator = define(
    "masked_sort", "(Tensor mask, int tile) -> Tensor",
    lambda mask, tile: _sort((tile,), mask)[0], _fake_sort,
)  # fmt: skip

_last = None, ()
"""The last order, and its key; the layers of a model take the same mask one after the other."""


def kept_order(mask: torch.Tensor, tile: int) -> torch.Tensor:
    """Return the last order if it is of this very mask, unchanged, or a new one.

    A tensor's version counts the changes that torch makes: a mask that another kernel writes in
    place must be a new tensor. A CUDA graph contains its partition, and whatever has no version
    (inference mode) gets a new one.
    """
    global _last
    if mask.is_inference() or (mask.is_cuda and torch._C._cuda_isCurrentStreamCapturing()):
        return _sort((tile,), mask)[0]
    stream = torch._C._cuda_getCurrentRawStream(mask.get_device()) if mask.is_cuda else None
    order, key = _last
    wanted = (mask._version, mask.data_ptr(), tile, stream)
    if order is None or key[0]() is not mask or key[1:] != wanted:
        (order,) = _sort((tile,), mask)
        _last = order, (weakref.ref(mask), *wanted)
    return order
