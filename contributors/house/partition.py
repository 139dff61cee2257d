"""The plan of a mask, made on the device: the tokens of either kind together, in whole tiles.

    mask   1 0 0 1 1 0 1          tiles of 4 tokens
    order  0 3 4 6 | 1 2 5 -1     where each row of the sorted tokens comes from; -1 is no token
    ends   4, 8                   the rows of the first kind, and all rows

Each kind begins a tile of its own, so that a tile has one kind of token and takes one weight. The
host does not know how many tiles either kind has, but a bound of their sum: one more than the
tokens fill. So nothing waits for the device.
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
    """The end of the visual tokens' rows, and of all rows that hold a token; int32 `[2]`."""
    tile: int
    """The rows of a tile; both ends are multiples of it."""

    @property
    def rows(self) -> int:
        """The most rows that a mask of this length may take."""
        return self.order.shape[0]


@triton.jit
def _partition_kernel(
    mask, order, ends, tokens, stride, rows,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Give BLOCK tokens their rows: row = rank among its kind, behind all tiles of the first kind.

    Each program counts the whole mask for itself, since that takes less time than a second launch.
    Bytes: (tokens / BLOCK) * tokens, nearly all of them from L2, and 4 * rows written.
    """
    if PDL:  # the next kernel may begin, and waits where it needs the plan
        tl.extra.cuda.gdc_launch_dependents()
    first = tl.program_id(0) * BLOCK
    visual = tl.zeros((AT_ONCE,), tl.int32)
    earlier = tl.zeros((AT_ONCE,), tl.int32)
    for start in range(0, tokens, AT_ONCE):
        token = start + tl.arange(0, AT_ONCE)
        chosen = tl.load(mask + token.to(tl.int64) * stride, token < tokens, 0).to(tl.int32)
        visual += chosen
        earlier += tl.where(token < first, chosen, 0)
    visuals, before = tl.sum(visual, axis=0), tl.sum(earlier, axis=0)
    end = tl.cdiv(visuals, TILE) * TILE

    token = first + tl.arange(0, BLOCK)
    real = token < tokens
    chosen = tl.load(mask + token.to(tl.int64) * stride, real, 0).to(tl.int32)
    rank = before + tl.cumsum(chosen, axis=0) - chosen  # the visual tokens before this one
    row = tl.where(chosen != 0, rank, end + token - rank)
    tl.store(order + row, token, real)

    if first == 0:
        gap = tl.arange(0, 2 * TILE)
        last = end + tokens - visuals
        tl.store(order + visuals + gap, -1, visuals + gap < end)
        tl.store(order + last + gap, -1, last + gap < rows)
        tl.store(ends, end)
        tl.store(ends + 1, tl.cdiv(last, TILE) * TILE)


def rows_of_plan(tokens: int, tile: int) -> int:
    """Return the rows that any mask of this length has room in: a kind may fill part of a tile."""
    return ((tokens + tile - 1) // tile + 1) * tile


def partition(mask: torch.Tensor, tile: int) -> Partition:
    """Return the tokens of a mask, bool `[tokens]`, sorted in tiles of so many rows."""
    tokens = mask.shape[0]
    rows = rows_of_plan(tokens, tile)
    order = torch.empty(rows, dtype=torch.int32, device=mask.device)
    ends = torch.empty(2, dtype=torch.int32, device=mask.device)
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
