"""The partition of a mask, made on the device: the tokens of either kind together, in whole tiles.

    mask   1 0 1 1 | 1 1 1 1 | 0 0 1 0        tiles of 4 tokens
    order  4 5 6 7 | 0 2 3 10 | 1 8 9 11 | -1 -1 -1 -1
    ends   8, 12

`order` says where each row of the sorted tokens comes from, `ends` where the visual ones end, and
all. Each kind begins a tile of its own, so that a tile has one kind of token and takes one weight;
-1 fills the last ones. Of a kind, the mask's tiles that have no other come first: their tokens lie
together, so that one copy fetches them. The host does not know how many tiles either kind has, but
a bound of their sum: one more than the tokens fill, which a mask may leave unused, as here. Memory
has that size, programs read `ends`, and nothing waits for the device.
"""

import weakref
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .forms import gpu, is_small, kernel_of
from .launch import Recorded, ceil_div, power_of_2
from .operators import define

SHORTEST, LONGEST = 4096, 32768
"""Tokens that a program counts at once, from and to."""


class Partition(NamedTuple):
    """The sorted tokens of one mask.

    `sorted`, int32 `[rows + 2]`, has each row's token, -1 for padding, then the two ends.
    """

    tokens: int
    tile: int  # rows of a tile
    sorted: torch.Tensor | None

    @property
    def rows(self):
        """The rows of all masks of this length: each kind may fill part of a tile."""
        return (ceil_div(self.tokens, self.tile) + 1) * self.tile


@triton.jit
def _tiles_at(mask, start, tokens, stride, TILES: tl.constexpr, TILE: tl.constexpr):
    """Return some tiles' tokens and their mask, [TILES, TILE], and of each tile the number
    of visual tokens, whether all are visual and whether all are textual, [TILES].
    """
    token = start + tl.arange(0, TILES)[:, None] * TILE + tl.arange(0, TILE)[None, :]
    chosen = tl.load(mask + token.to(tl.int64) * stride, token < tokens, 0).to(tl.int32)
    visuals = tl.sum(chosen, axis=1)
    full = start + tl.arange(0, TILES) * TILE + TILE <= tokens
    return token, chosen, visuals, visuals == TILE, full & (visuals == 0)


@triton.jit
def _both(counts):
    """Return the sums of the low and of the high halves of int64 counts."""
    total = tl.sum(counts, axis=0)
    return total.to(tl.int32), (total >> 32).to(tl.int32)


@triton.jit
def _sort_kernel(
    mask, order, tokens, stride, rows,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, TILE: tl.constexpr, TRIGGERS: tl.constexpr,
):  # fmt: skip
    """Give BLOCK tokens their rows: in a whole tile by the tile's rank, else by the token's.

    Each program counts the whole mask for itself, which takes less time than a second launch.
    Bytes: (tokens / BLOCK) * tokens, nearly all of them from L2, and 4 * rows written.
    """
    if TRIGGERS:  # the next kernel may begin, and waits where it needs the order
        tl.extra.cuda.gdc_launch_dependents()
    first = tl.program_id(0) * BLOCK
    TILES: tl.constexpr = AT_ONCE // TILE
    # Of visual tokens and of whole tiles: all, and in the high half those before this program's.
    visuals = tl.zeros((TILES,), tl.int64)
    wholes, others = visuals, visuals
    for start in range(0, tokens, AT_ONCE):
        _, _, counts, whole, other = _tiles_at(mask, start, tokens, stride, TILES, TILE)
        earlier = (start + tl.arange(0, TILES) * TILE < first).to(tl.int64)
        once = 1 + (earlier << 32)
        visuals += counts * once
        wholes += whole * once
        others += other * once
    visual, visual_before = _both(visuals)
    whole, whole_before = _both(wholes)
    other, other_before = _both(others)
    end = tl.cdiv(visual, TILE) * TILE
    last = end + tokens - visual

    token, chosen, counts, is_whole, is_other = _tiles_at(
        mask, first, tokens, stride, BLOCK // TILE, TILE
    )
    is_whole, is_other = is_whole.to(tl.int64), is_other.to(tl.int64)
    is_mixed = 1 - is_whole - is_other
    # Ranks: of whole tiles, and of a mixed tile's tokens. The counts of a block have 11 bits.
    packed = is_whole + (is_other << 16) + ((counts * is_mixed) << 32)
    packed = tl.cumsum(packed, axis=0) - packed
    wholes_here, others_here = (packed & 65535).to(tl.int32), (packed >> 16 & 65535).to(tl.int32)
    visual_here = (packed >> 32).to(tl.int32)
    mixed_here = tl.arange(0, BLOCK // TILE) - wholes_here - others_here
    rank = visual_here[:, None] + tl.cumsum(chosen, axis=1) - chosen
    inside = (token - first) % TILE
    other_rank = mixed_here[:, None] * TILE + inside - rank
    of_visual = visual_before + (whole - whole_before) * TILE + rank
    of_textual = first - visual_before + (other - other_before) * TILE + other_rank
    mixed = (is_mixed != 0)[:, None]
    of_visual = tl.where(mixed, of_visual, (whole_before + wholes_here)[:, None] * TILE + inside)
    of_textual = tl.where(mixed, of_textual, (other_before + others_here)[:, None] * TILE + inside)
    row = tl.where(chosen != 0, of_visual, end + of_textual)
    tl.store(order + row, token, token < tokens)

    if first == 0:
        gap = tl.arange(0, 2 * TILE)
        tl.store(order + visual + gap, -1, visual + gap < end)
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
def _sort(launch, tile, mask):
    check_mask(mask)
    (tokens,), (stride,) = mask.shape, mask.stride()
    few = tokens <= SHORTEST
    block, warps = (256, 4) if few and not is_small(tile) else (1024, 8)
    at_once = min(max(power_of_2(tokens), SHORTEST), LONGEST)
    if few and is_small(tile):
        at_once = block
    rows = Partition(tokens, tile, None).rows
    result = mask.new_empty(rows + 2, dtype=torch.int32)
    launch(
        kernel_of(_sort_few_kernel if few else _sort_kernel, tile),
        (max(ceil_div(tokens, block), 1),),
        mask, result, tokens, stride, rows,
        BLOCK=block, AT_ONCE=at_once, TILE=tile, TRIGGERS=gpu().hopper,
        num_warps=16 if at_once >= 16384 else warps,
    )  # fmt: skip
    return (result,)


def partition_of(mask: torch.Tensor, tile: int) -> Partition:
    """Return the partition of a mask, bool `[tokens]`, in tiles of so many rows."""
    return Partition(mask.numel(), tile, *_sort((tile,), mask))


def _fake_sorted(mask, tile):
    return mask.new_empty(Partition(mask.shape[0], tile, None).rows + 2, dtype=torch.int32)


# Compiled for training, layers with the same mask share its result, in both directions. None is
# kept for a next call: CUDA graphs (mode="reduce-overhead") own the memory that operators make.
sorted_operator = define(
    "masked_sort", "(Tensor mask, int tile) -> Tensor",
    lambda mask, tile: partition_of(mask, tile).sorted, _fake_sorted,
)  # fmt: skip

_last = None, ()
"""The last partition, and its key; the layers of a model take the same mask one after the other."""


def kept_partition(mask: torch.Tensor, tile: int) -> Partition:
    """Return the last partition if it is of this very mask, unchanged, or a new one.

    A tensor's version counts the changes that torch makes: a mask that another kernel writes in
    place must be a new tensor. A CUDA graph contains its partition, and whatever has no version
    (inference mode) gets a new one.
    """
    global _last
    if mask.is_inference() or (mask.is_cuda and torch._C._cuda_isCurrentStreamCapturing()):
        return partition_of(mask, tile)
    stream = torch._C._cuda_getCurrentRawStream(mask.get_device()) if mask.is_cuda else None
    partition, key = _last
    wanted = (mask._version, mask.data_ptr(), tile, stream)
    if partition is None or key[0]() is not mask or key[1:] != wanted:
        partition = partition_of(mask, tile)
        _last = partition, (weakref.ref(mask), *wanted)
    return partition
