"""Tiles of matrices, in two forms: a descriptor's (Hopper) and a pointer's (everything else).

The tensor memory accelerator (TMA) copies a tile by a descriptor: one thread asks for it, and
elements outside of the matrix read as zero. Other devices, the interpreter, float32 and matrices
that no descriptor can describe take pointers and masks. A kernel is told by `TMA`.
"""

import functools
import threading

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# --- on the device --------------------------------------------------------------------------------


@triton.jit
def tile_of(number, row_blocks, column_blocks, GROUP: tl.constexpr):
    """Return a tile's row and column, in groups of GROUP rows of tiles, whose factors L2 keeps."""
    group = number // (GROUP * column_blocks)
    height = tl.minimum(row_blocks - group * GROUP, GROUP)
    inside = number % (GROUP * column_blocks)
    return group * GROUP + inside % height, inside // height


@triton.jit
def load_tile(
    matrix, row, column, rows, columns, row_stride, column_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Return ROWS x COLUMNS elements of a matrix [rows, columns], zero outside of it."""
    if TMA:
        return matrix.load([row, column])
    else:
        row += tl.arange(0, ROWS)
        column += tl.arange(0, COLUMNS)
        place = (
            row[:, None].to(tl.int64) * row_stride + column[None, :].to(tl.int64) * column_stride
        )
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        return tl.load(matrix + place, inside, 0.0)


@triton.jit
def load_factor(
    w, depth, column, depths, columns, depth_stride, column_stride,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Return DEPTH x COLUMNS elements of a right factor; a TURNED one lies as its transpose."""
    if TURNED:
        return load_tile(
            w, column, depth, columns, depths, column_stride, depth_stride, COLUMNS, DEPTH, TMA
        ).T
    else:
        return load_tile(
            w, depth, column, depths, columns, depth_stride, column_stride, DEPTH, COLUMNS, TMA
        )


@triton.jit
def load_both(
    v, w, depth, column, depths, columns, depth_stride, column_stride,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return a tile of v and, to its right, the same tile of w; both are pointers."""
    depth += tl.arange(0, DEPTH)
    both = tl.arange(0, 2 * COLUMNS)
    column += both % COLUMNS
    place = (
        depth[:, None].to(tl.int64) * depth_stride + column[None, :].to(tl.int64) * column_stride
    )
    inside = (depth < depths)[:, None] & (column < columns)[None, :]
    return tl.load(tl.where((both < COLUMNS)[None, :], v + place, w + place), inside, 0.0)


@triton.jit
def rows_of(matrix, tokens, row_stride):
    """Return pointers to the rows of these tokens, [tokens, 1]."""
    return matrix + tokens[:, None].to(tl.int64) * row_stride


@triton.jit
def load_rows(
    pointers, tokens, column, columns, column_stride, COLUMNS: tl.constexpr, WHOLE: tl.constexpr
):
    """Return COLUMNS elements of the rows that `pointers` point at; zero for token -1.

    WHOLE says that all of these columns exist.
    """
    column += tl.arange(0, COLUMNS)
    inside = (tokens >= 0)[:, None]
    if not WHOLE:
        inside = inside & (column < columns)[None, :]
    return tl.load(pointers + column[None, :].to(tl.int64) * column_stride, inside, 0.0)


@triton.jit
def store_rows(matrix, tokens, column, columns, row_stride, values):
    """Store values in the rows of these tokens; token -1 has none."""
    COLUMNS: tl.constexpr = values.shape[1]
    column += tl.arange(0, COLUMNS)
    place = tokens[:, None].to(tl.int64) * row_stride + column[None, :]
    inside = (tokens >= 0)[:, None] & (column < columns)[None, :]
    tl.store(matrix + place, values.to(matrix.dtype.element_ty), inside)


@triton.jit
def stagger(NANOSECONDS: tl.constexpr):
    """Let every second program begin later, so that not all programs store at the same time."""
    tl.inline_asm_elementwise(
        "{.reg .pred p; setp.ne.u32 p, $1, 0; @p nanosleep.u32 $2; mov.u32 $0, $1;}",
        "=r,r,r", [tl.program_id(0) % 2, NANOSECONDS], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def halves(values):
    """Return the left and the right half of a block's columns."""
    ROWS: tl.constexpr = values.shape[0]
    HALF: tl.constexpr = values.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(values, (ROWS, 2, HALF)), (0, 2, 1)))


# --- on the host ----------------------------------------------------------------------------------

HOPPER = {
    "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP": 8, "TMA": True,
    "num_warps": 8, "num_stages": 4,
}  # fmt: skip
HOPPER_SMALL = {**HOPPER, "BLOCK_N": 128, "num_stages": 3}
"""For few tiles: two programs share a multiprocessor."""
PLAIN = {
    "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP": 8, "TMA": False,
    "num_warps": 8, "num_stages": 3,
}  # fmt: skip
ROWS = 128
"""The rows of a partition's tile, which is BLOCK_M of either form."""
forced = None
"""The form that every launch takes, whatever the device; for tests."""


def form_of(*matrices, pairs=()):
    """Return the constants of a launch whose descriptors would describe these matrices and pairs."""
    if forced is not None:
        return forced
    fits = all(map(is_describable, matrices)) and all(
        are_describable_as_pair(*pair) for pair in pairs
    )
    return HOPPER if _on_hopper() and fits else PLAIN


@functools.cache
def _gpu():
    """Return the architecture that kernels are made for and its number of multiprocessors."""
    try:
        driver = triton.runtime.driver.active
        target = driver.get_current_target()
        device = driver.utils.get_device_properties(driver.get_current_device())
        return target.backend, target.arch, device["multiprocessor_count"]
    except (RuntimeError, ImportError):  # the interpreter: Triton finds no driver
        return None, None, 4


def _on_hopper():
    return _gpu()[:2] == ("cuda", 90)


def processors():
    """Return the number of programs that run at once."""
    return _gpu()[2]


def programs_for(tiles, form):
    """Return how many programs go through so many tiles."""
    return min(tiles, (2 if form["BLOCK_N"] < 256 and form["TMA"] else 1) * processors())


def is_describable(matrix):
    """Return whether the TMA can copy tiles: contiguous rows or columns, multiples of 16 bytes."""
    if matrix.element_size() != 2 or matrix.data_ptr() % 16:
        return False
    short, long = sorted(matrix.stride())
    return short == 1 and long % 8 == 0 and long >= min(matrix.shape)


def is_turned(factor):
    """Return whether a right factor [depths, columns] lies in memory as its transpose."""
    return factor.stride(0) == 1


def factors(*weights):
    """Return weights of one shape with the same strides, copied if they differ."""
    if len({weight.stride() for weight in weights}) > 1:
        return [weight.contiguous() for weight in weights]
    return weights


def described(matrix, rows, columns, form):
    """Return what a kernel takes for a matrix whose tiles are rows x columns."""
    if not form["TMA"]:
        return matrix
    _make_context_current(matrix.device)
    if is_turned(matrix):
        matrix, rows, columns = matrix.T, columns, rows
    return TensorDescriptor(matrix, matrix.shape, matrix.stride(), [rows, columns])


def are_describable_as_pair(first, second):
    """Return whether one descriptor can describe both: a dimension's stride is below 2^40 bytes."""
    both = first.stride() == second.stride() and is_turned(first)
    return both and 0 < abs(first.data_ptr() - second.data_ptr()) < 1 << 40


def described_pair(first, second, rows, columns):
    """Return a descriptor of two turned matrices as one, and whether the second one comes first.

    The first dimension is the choice between the two, and its stride is the distance between them
    in memory. So one copy fetches a tile of both, and no other address is ever made.
    """
    _make_context_current(first.device)
    distance = (second.data_ptr() - first.data_ptr()) // first.element_size()
    low = (first if distance > 0 else second).T
    shape, strides = [2, *low.shape], [abs(distance), *low.stride()]
    return TensorDescriptor(low, shape, strides, [2, columns, rows]), int(distance < 0)


_threads = threading.local()


def _make_context_current(device):
    """Launch something once in each thread, such as autograd's, before a descriptor is made there.

    CUDA makes a context a thread's own at the thread's first launch; making a descriptor needs it.
    """
    if device.type == "cuda" and getattr(_threads, "device", None) != device:
        torch.zeros(1, device=device)
        _threads.device = device
