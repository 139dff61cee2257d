"""The plan of a mask, made on the device: the tokens of either kind together, in whole tiles.

    mask   1 0 1 1 | 1 1 1 1 | 0 0 1 0        tiles of 4 tokens
    order  4 5 6 7 | 0 2 3 10 | 1 8 9 11      where each row of the sorted tokens comes from
    ends   8, 12                              the rows of the first kind, and all rows
           4, 8                               their rows that are whole tiles of the mask

Each kind begins a tile of its own, so that a tile has one kind of token and takes one weight; -1
fills the last one. Of a kind, the mask's tiles that have no other come first: their tokens lie
together, so that one copy fetches them. The host does not know how many tiles either kind has, but
a bound of their sum: one more than the tokens fill. So nothing waits for the device.
"""

import weakref
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from forms import kernel_of, on_hopper


@dataclass(frozen=True)
class Partition:
    """The sorted tokens of one mask."""

    tokens: int
    """The length of the mask."""
    order: torch.Tensor
    """The token of each row, or -1; int32 `[rows]`."""
    ends: torch.Tensor
    """The ends, int32 `[4]`: of the visual tokens' rows, of all rows that hold a token, and of
    either kind's rows that are whole tiles of the mask."""
    tile: int
    """The rows of a tile; the ends are multiples of it."""

    @property
    def rows(self) -> int:
        """The most rows that a mask of this length may take."""
        return self.order.shape[0]


@triton.jit
def _tiles_at(mask, token, tokens, stride, TILE: tl.constexpr):
    """Return the mask [tiles, TILE] of some tokens, and by tile its sum and whether it is whole."""
    chosen = tl.load(mask + token.to(tl.int64) * stride, token < tokens, 0).to(tl.int32)
    visuals = tl.sum(chosen, axis=1)
    textuals = tl.sum((token < tokens).to(tl.int32), axis=1) - visuals
    return chosen, visuals, (visuals == TILE).to(tl.int32), (textuals == TILE).to(tl.int32)


@triton.jit
def _rank(flags):
    """Return the number of flags before each one, in the order of memory."""
    flat = tl.reshape(flags, (flags.numel,))
    return tl.reshape(tl.cumsum(flat, axis=0) - flat, flags.shape)


@triton.jit
def _partition_kernel(
    mask, order, ends, tokens, stride, rows,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Give BLOCK tokens their rows: in a whole tile by the tile's rank, else by the token's.

    Each program counts the whole mask for itself, since that takes less time than a second launch.
    Bytes: (tokens / BLOCK) * tokens, nearly all of them from L2, and 4 * rows written.
    """
    if PDL:  # the next kernel may begin, and waits where it needs the plan
        tl.extra.cuda.gdc_launch_dependents()
    first = tl.program_id(0) * BLOCK
    inside = tl.arange(0, TILE)[None, :]
    # Tokens and tiles of the whole mask, and those before this program's.
    all_visual, all_whole_visual, all_whole_textual = 0, 0, 0
    visual, whole_visual, whole_textual = 0, 0, 0
    for start in range(0, tokens, AT_ONCE):
        tile = start + tl.arange(0, AT_ONCE // TILE) * TILE
        _, sums, wholes, others = _tiles_at(mask, tile[:, None] + inside, tokens, stride, TILE)
        all_visual += tl.sum(sums, axis=0)
        all_whole_visual += tl.sum(wholes, axis=0)
        all_whole_textual += tl.sum(others, axis=0)
        visual += tl.sum(tl.where(tile < first, sums, 0), axis=0)
        whole_visual += tl.sum(tl.where(tile < first, wholes, 0), axis=0)
        whole_textual += tl.sum(tl.where(tile < first, others, 0), axis=0)
    end = tl.cdiv(all_visual, TILE) * TILE
    last = end + tokens - all_visual

    token = first + tl.arange(0, BLOCK // TILE)[:, None] * TILE + inside
    chosen, _, wholes, others = _tiles_at(mask, token, tokens, stride, TILE)
    mixed = (token < tokens).to(tl.int32) * (1 - wholes - others)[:, None]
    of_visual = visual + (all_whole_visual - whole_visual) * TILE + _rank(chosen * mixed)
    of_textual = first - visual + (all_whole_textual - whole_textual) * TILE
    of_textual += _rank((1 - chosen) * mixed)
    whole = tl.where(
        chosen != 0,
        (whole_visual + _rank(wholes))[:, None],
        (whole_textual + _rank(others))[:, None],
    )
    row = tl.where(mixed != 0, tl.where(chosen != 0, of_visual, of_textual), whole * TILE + inside)
    tl.store(order + tl.where(chosen != 0, row, end + row), token, token < tokens)

    if first == 0:
        gap = tl.arange(0, 2 * TILE)
        tl.store(order + all_visual + gap, -1, all_visual + gap < end)
        tl.store(order + last + gap, -1, last + gap < rows)
        tl.store(ends, end)
        tl.store(ends + 1, tl.cdiv(last, TILE) * TILE)
        tl.store(ends + 2, all_whole_visual * TILE)
        tl.store(ends + 3, end + all_whole_textual * TILE)


def rows_of_plan(tokens: int, tile: int) -> int:
    """Return the rows that any mask of this length has room in: a kind may fill part of a tile."""
    return ((tokens + tile - 1) // tile + 1) * tile


def partition(mask: torch.Tensor, tile: int) -> Partition:
    """Return the tokens of a mask, bool `[tokens]`, sorted in tiles of so many rows."""
    tokens = mask.shape[0]
    rows = rows_of_plan(tokens, tile)
    order = torch.empty(rows, dtype=torch.int32, device=mask.device)
    ends = torch.empty(4, dtype=torch.int32, device=mask.device)
    block = 1024
    at_once = block if tokens <= 4 * block else 16 * block
    kernel_of(_partition_kernel, tile)[(max(triton.cdiv(tokens, block), 1),)](
        mask, order, ends, tokens, mask.stride(0), rows, block, at_once, tile,
        num_warps=8 if at_once == block else 16, PDL=on_hopper(),
    )  # fmt: skip
    return Partition(tokens, order, ends, tile)


_last = None, ()
"""The last plan, and its key; the layers of a model take the same mask one after the other."""


def plan_of(mask: torch.Tensor, tile: int) -> Partition:
    """Return the partition of a mask, the last one if it is of this very tensor, unchanged.

    A tensor's version counts the changes that torch makes, so that a mask which another kernel
    writes in place must be a new tensor. A CUDA graph contains its plan, and so does whatever has
    no version (inference mode).
    """
    global _last
    if mask.is_inference() or (mask.is_cuda and torch.cuda.is_current_stream_capturing()):
        return partition(mask, tile)
    stream = torch.cuda.current_stream(mask.device).cuda_stream if mask.is_cuda else None
    plan, key = _last
    wanted = (mask._version, mask.data_ptr(), tile, stream)
    if plan is None or key[0]() is not mask or key[1:] != wanted:
        plan = partition(mask, tile)
        _last = plan, (weakref.ref(mask), *wanted)
    return plan
