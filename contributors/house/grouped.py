"""Tokens sorted by kind on the device, and the parts that kernels of sorted tokens share.

    mask   1 0 1 1 0 1        a tile, here of 4 rows, has tokens of one kind and takes one weight
    order  0 2 3 5 | 1 4 - -  the token of each sorted row; -1 fills a kind's last tile
    ends   4, 8               the rows at which the visual tokens end, and all

The host does not know how many tiles either kind has, but a bound of their sum: one more than the
tokens fill. Memory has room for that; programs read `ends`, and nothing waits for the device.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


class Sorted(NamedTuple):
    """The tokens of a mask sorted by kind: first the visual ones, where it is true; a `plan`."""

    order: torch.Tensor  # int32 [rows], the token of each row, or -1; undefined from ends[1] on
    ends: torch.Tensor  # int32 [2], where the visual rows end, and all; multiples of a tile
    tokens: int


def blocks_for(x):
    """Return the options of a product's launch: BLOCK_M x BLOCK_N accumulators, BLOCK_K a step."""
    sizes = (64, 64, 32), 4, 2  # float32 multiplies without tensor cores, in more registers
    if x.dtype.itemsize == 2:
        # Each of two groups of 128 threads has 64 x 256 accumulators, as many as its registers
        # hold; four steps of both factors and a store take 224 of the 227 KiB of shared memory.
        sizes = (128, 256, 64), 8, 4
        if x.is_cuda and not early(x):
            sizes = (128, 128, 32), 8, 3  # 48 KiB, for other GPUs
    (m, n, k), warps, stages = sizes
    launch = {"num_warps": warps, "num_stages": stages} | early(x)
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k} | launch


def early(x):
    """Return the option to launch while the last kernel runs, on capability 9.0 or 10.0: `wait`."""
    nvidia = x.is_cuda and torch.version.cuda
    hopper = nvidia and torch.cuda.get_device_capability(x.device) in ((9, 0), (10, 0))
    return {"launch_pdl": True} if hopper else {}


def processors(x):
    """Return the multiprocessors of x's device; without a GPU, those of an H100."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 132


def new_rows(like, rows, columns):
    """Return a new matrix of so many columns, rounded up to a multiple of 16 bytes a row."""
    unit = 16 // like.dtype.itemsize
    return like.new_empty(rows, triton.cdiv(columns, unit) * unit)


def aligned(matrix):
    """Return the matrix, or a copy with contiguous rows that begin at multiples of 16 bytes."""
    (rows, columns), (row, column), size = matrix.shape, matrix.stride(), matrix.dtype.itemsize
    if column == 1 and row >= columns and row * size % 16 == 0 and matrix.data_ptr() % 16 == 0:
        return matrix
    return new_rows(matrix, rows, columns)[:, :columns].copy_(matrix)


def tiles_of(tensor, *block):
    """Return a descriptor, by which kernels load tiles of this shape, zero outside of the tensor.

    On Hopper the tensor memory accelerator copies a tile; elsewhere Triton makes masked loads.
    """
    return TensorDescriptor(tensor, tensor.shape, tensor.stride(), list(block))


def tiles_of_weights(weights, *block):
    """Return a descriptor of one weight or of a pair, [1 or 2, ...], and the weights themselves.

    A pair that lies alike is not copied: the stride from one to the other is their distance in
    memory, from the lower address to the higher one, of at most 2^40 bytes.
    """
    weights = [aligned(each) for each in weights]
    first, last = weights[0], weights[-1]
    apart = abs(first.data_ptr() - last.data_ptr())
    if len(weights) == 2 and (first.stride() != last.stride() or not 0 < apart < 1 << 40):
        weights = first, last = aligned(torch.cat((first, last))).chunk(2)
        apart = last.data_ptr() - first.data_ptr()
    low = min(weights, key=torch.Tensor.data_ptr)
    strides = (apart or 16) // low.dtype.itemsize, *low.stride()  # of one weight: any, 16 bytes
    return TensorDescriptor(low, (len(weights), *low.shape), strides, list(block)), *weights


def sort(mask, tile):
    """Return the Sorted tokens of a mask, bool `[tokens]`, in tiles of so many rows."""
    tokens, block, rows = len(mask), 1024, (triton.cdiv(len(mask), tile) + 1) * tile
    order, ends = (mask.new_empty(each, dtype=torch.int32) for each in (rows, 2))
    chunk = min(max(triton.next_power_of_2(tokens), block), 16384)
    grid, sizes = (max(triton.cdiv(tokens, block), 1),), (tokens, mask.stride(0))
    _sort_kernel[grid](mask, order, ends, sizes, tile, block, chunk, num_warps=8, **early(mask))
    return Sorted(order, ends, tokens)


def pack(plan, matrix):
    """Return a matrix, [tokens, columns], and a copy of those sorted rows that lie apart."""
    # blocks of BLOCK_K rows whose tokens follow one another stay empty: sums read the matrix
    matrix, columns, rows = aligned(matrix), matrix.shape[1], blocks_for(matrix)["BLOCK_K"]
    copy = new_rows(matrix, len(plan.order), columns)
    sizes = columns, matrix.stride(0), copy.stride(0)
    grid = len(plan.order) // rows, triton.cdiv(columns, 256)
    _pack_kernel[grid](matrix, copy, plan.order, plan.ends, sizes, rows, 256, **early(matrix))
    return matrix, copy


@triton.jit
def wait():
    """Wait until the kernel before has ended; this one may have begun early (`launch_pdl`)."""
    if tl.target_info.cuda_capability_geq(9):
        tl.extra.cuda.gdc_wait()


@triton.jit
def tile_at(number, row_blocks, column_blocks):
    """Return a tile's row and column, by groups of 8 rows, that share their factors in L2."""
    group, inside = number // (8 * column_blocks), number % (8 * column_blocks)
    height = tl.maximum(tl.minimum(row_blocks - group * 8, 8), 1)  # past the last: outside
    return group * 8 + inside % height, inside // height


@triton.jit
def pointers_to(matrix, rows, row_stride):
    """Return pointers [ROWS, 1] to rows at places of their own; row -1 takes the first one."""
    return matrix + tl.maximum(rows, 0)[:, None].to(tl.int64) * row_stride


@triton.jit
def load_columns(pointers, rows, column, limit, COLUMNS: tl.constexpr, WHOLE: tl.constexpr):
    """Return columns of rows, [ROWS, COLUMNS], by `pointers_to` them.

    Row -1 is zero and, unless these are WHOLE, columns from the limit on.
    """
    columns, there = column + tl.arange(0, COLUMNS), (rows >= 0)[:, None]
    if not WHOLE:
        there &= (columns < limit)[None, :]
    return tl.load(pointers + columns[None, :], there, 0.0)


@triton.jit
def halves(values):
    """Return the left and the right half of a tile's columns."""
    shape: tl.constexpr = (values.shape[0], 2, values.shape[1] // 2)
    return tl.split(tl.permute(tl.reshape(values, shape), (0, 2, 1)))


@triton.jit
def store_rows(matrix, rows, column, values, row_stride, limit):
    """Store values, [ROWS, COLUMNS], from a column on and below the limit; row -1 has no place.

    Threads exchange values so that each stores neighbours; a whole tile takes too many registers.
    """
    left, right = halves(values)
    for half in tl.static_range(2):
        part = right if half else left
        columns = column + half * part.shape[1] + tl.arange(0, part.shape[1])
        there = (rows >= 0)[:, None] & (columns < limit)[None, :]
        place = pointers_to(matrix, rows, row_stride) + columns[None, :]
        tl.store(place, part.to(matrix.dtype.element_ty), there)


@triton.jit
def is_swapped(weights, visual):
    """Return 1 if the first of a kind's pair has the higher address, otherwise 0."""
    first = tl.where(visual, weights[0].to(tl.int64), weights[2].to(tl.int64))
    second = tl.where(visual, weights[1].to(tl.int64), weights[3].to(tl.int64))
    return (first > second).to(tl.int32)


@triton.jit
def choose(condition, first, second):
    """Return one of two descriptors, which a conditional expression does not take."""
    chosen = second
    if condition:
        chosen = first
    return chosen


@triton.jit
def run_at(order, row, ROWS: tl.constexpr):
    """Return the first token of ROWS sorted rows if its successors follow (all ascend), or -1."""
    first, last = tl.load(order + row), tl.load(order + row + ROWS - 1)
    return tl.where(last - first == ROWS - 1, first, -1)


@triton.jit
def _sort_kernel(
    mask,  # bool [tokens], true for a visual token
    order,  # int32 [rows], the result
    ends,  # int32 [2], the result
    sizes,  # tokens; the stride from one to the next, elements
    TILE: tl.constexpr,  # rows of one kind
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,  # tokens of a program, and counted at once
):  # fmt: skip
    """Give BLOCK tokens their rows; tokens of a kind keep their order.

    Each program counts the whole mask for itself, which takes less time than a second launch.
    Bytes: tokens read by each program, nearly all from L2, and 4 * tokens written.
    """
    wait()
    tokens, stride = sizes
    first, visuals, before = tl.program_id(0) * BLOCK, 0, 0
    for start in range(0, tokens, CHUNK):
        token = start + tl.arange(0, CHUNK)
        visual = tl.load(mask + token.to(tl.int64) * stride, token < tokens, 0).to(tl.int32)
        visuals += tl.sum(visual)
        before += tl.sum(tl.where(token < first, visual, 0))
    textual_start = tl.cdiv(visuals, TILE) * TILE
    token = first + tl.arange(0, BLOCK)
    visual = tl.load(mask + token.to(tl.int64) * stride, token < tokens, 0).to(tl.int32)
    rank = before + tl.cumsum(visual) - visual  # how many visual tokens come before
    row = tl.where(visual != 0, rank, textual_start + token - rank)
    tl.store(order + row, token, token < tokens)
    if first == 0:
        filled, gap = textual_start + tokens - visuals, tl.arange(0, TILE)
        end = tl.cdiv(filled, TILE) * TILE
        tl.store(order + visuals + gap, -1, visuals + gap < textual_start)
        tl.store(order + filled + gap, -1, filled + gap < end)
        tl.store(ends, textual_start)
        tl.store(ends + 1, end)


@triton.jit
def _pack_kernel(
    matrix,  # [tokens, columns]
    copy,  # [rows, columns], the result
    order,  # int32 [rows]
    ends,  # int32 [2]
    sizes,  # columns; the row strides of the matrix and of the copy, elements
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # of a block
):  # fmt: skip
    """Copy a block of the matrix's sorted rows, unless their tokens follow one another.

    Bytes: twice the matrix for a random mask, nearly none for spans.
    """
    wait()
    columns, from_row, to_row = sizes
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    if row < tl.load(ends + 1) and run_at(order, row, ROWS) < 0:
        rows = row + tl.arange(0, ROWS)
        tokens = tl.load(order + rows)
        pointers = pointers_to(matrix, tokens, from_row)
        values = load_columns(pointers, tokens, column, columns, COLUMNS, False)
        store_rows(copy, rows, column, values, row_stride=to_row, limit=columns)
