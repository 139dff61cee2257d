"""The forms of a launch: by descriptors on Hopper, by pointers elsewhere, small for small products.

The tensor memory accelerator (TMA) copies a tile by a descriptor: one thread asks for it, and
elements outside of the matrix read as zero. Other devices, the interpreter, float32 and matrices
that no descriptor can describe take pointers and masks. A kernel is told by `TMA`. A small product
takes a form that is compiled once for a dtype and serves all sizes and strides.
"""

import functools

import triton

from .descriptors import TilePlan, Tiles

# Two groups of warps each add up 64 x 256 products, the most that registers hold; four stages of
# both factors and a quarter of a tile to store fill the shared memory.
HOPPER = {
    "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP": 8, "TMA": True,
    "num_warps": 8, "num_stages": 4,
}  # fmt: skip
SHORT = {**HOPPER, "BLOCK_M": 64, "num_warps": 4}
"""For few tokens."""
NARROW = {**HOPPER, "BLOCK_N": 128, "num_stages": 3}
"""For few columns; two programs share a multiprocessor."""
LIGHT = {**NARROW, "num_warps": 4}
"""For a long epilogue: of two programs on a multiprocessor, one stores while one multiplies."""
# Fits into 99 KB of shared memory, the least of today's GPUs of NVIDIA, in float32 too.
PLAIN = {
    "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP": 8, "TMA": False,
    "num_warps": 8, "num_stages": 3,
}  # fmt: skip
# A compiler's time for a product of float32 grows with the tile; a small product needs no stages.
# Sums over tokens go by BLOCK_K rows, which must divide a partition's tiles of BLOCK_M.
SMALL = {
    "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 8, "TMA": False,
    "num_warps": 4, "num_stages": 1,
}  # fmt: skip
FEW = 1 << 26
"""Products of two numbers, below which an op is small: it takes microseconds in any form."""
forced = None
"""The form that tests ask for: "descriptors", "pointers" or "small"; None leaves it to the size
and the device."""


def ceil_div(length, block):
    """Return how many blocks cover a length; `triton.cdiv` takes ten times as long."""
    return -(-length // block)


def height_of(x, w, weights=1):
    """Return the rows of a partition's tiles for x [tokens, depths] and weights [columns, depths].

    They are 32 where the op is small, and 64 where tiles of 128 would leave processors idle.
    """
    try:
        (tokens, depths), (columns, _) = x.shape, w.shape
    except ValueError:
        raise ValueError(f"x {list(x.shape)} and weight {list(w.shape)} are no matrices") from None
    columns *= weights
    if forced == "small" or (forced is None and tokens * depths * columns < FEW):
        return SMALL["BLOCK_M"]
    return 64 if _tiles(tokens, columns) < processors() else 128


def is_small(tile):
    """Return whether it is the height of a small op's tiles, which no other op has."""
    return tile == SMALL["BLOCK_M"]


def height_of_sums(tile):
    """Return the height of a form for sums over the rows of a partition with tiles of so many."""
    return tile if is_small(tile) else 128


def _tiles(rows, columns):
    return ceil_div(rows, 128) * ceil_div(columns, 256)


def form_of(dtype, *matrices, pairs=(), height=128, shape=None):
    """Return the constants of a launch.

    Args:
        dtype: The factors' type.
        matrices: Those that descriptors would describe.
        pairs: Pairs of which one descriptor would describe each: a matrix and their distance.
        height: The rows of a tile of the partition.
        shape: That of the product, where it may be narrow.
    """
    if is_small(height):
        return SMALL
    fits = all(map(is_describable, matrices)) and all(is_pair(*pair) for pair in pairs)
    wanted = on_hopper() if forced is None else forced == "descriptors"
    if dtype.itemsize != 2 or not fits or not wanted:
        amd = {"BLOCK_N": 64, "num_stages": 2}  # an MI300X has 64 KB of shared memory
        return {**PLAIN, "BLOCK_M": height, **(amd if _gpu()[0] == "hip" else {})}
    if height == 64:
        return SHORT
    return NARROW if shape and _tiles(*shape) < processors() else HOPPER


@functools.cache
def _of_all_sizes(kernel):
    """Return a kernel that no fact of its integers and addresses is compiled into."""
    values = [name for name in kernel.arg_names if name not in kernel.fn.__annotations__]
    return triton.jit(kernel.fn, do_not_specialize=values)


def kernel_of(kernel, tile):
    """Return what to launch for a partition with tiles of so many rows."""
    return _of_all_sizes(kernel) if is_small(tile) else kernel


def plan_for(kernel, tile, form, grid, rest, tiles, **options):
    """Return a plan of a launch in a form, for a partition with tiles of so many rows.

    The first tensors have these tiles, if the form has descriptors; None stands for a tensor that
    has none.
    """
    tiles = {place: each for place, each in enumerate(tiles) if each} if form["TMA"] else {}
    return TilePlan(kernel_of(kernel, tile), grid, rest, tiles, **form, **options)


def is_whole(form, *lengths):
    """Return whether blocks divide lengths, given as (length, block), and a kernel is to know."""
    return form is not SMALL and all(length % block == 0 for length, block in lengths)


def overlapping(form, triggers=False):
    """Return the options of a launch that begins while the one before it still runs.

    If it triggers, the next one begins while it runs, in the registers that it leaves.
    """
    if not (form["TMA"] and on_hopper()):
        return {}
    begins = {"PDL": True, "launch_pdl": True}
    return {**begins, "TRIGGERS": True, "maxnreg": 224} if triggers else begins


@functools.cache
def _gpu():
    """Return the backend and architecture that kernels are made for, and its multiprocessors.

    Where there is no GPU they are an H100's: as many programs are counted as it would run.
    """
    if triton.knobs.runtime.interpret:
        return None, None, 132
    try:
        driver = triton.runtime.driver.active
        target = driver.get_current_target()
        device = driver.utils.get_device_properties(driver.get_current_device())
    except (RuntimeError, ImportError):
        return None, None, 132
    return target.backend, target.arch, device["multiprocessor_count"]


def on_hopper():
    """Return whether kernels are made for compute capability 9.0."""
    return _gpu()[:2] == ("cuda", 90)


def on_nvidia():
    """Return whether kernels are made for a GPU of NVIDIA."""
    return _gpu()[0] == "cuda"


def processors():
    """Return the number of multiprocessors."""
    return _gpu()[2]


def programs_for(tiles, form):
    """Return how many programs go through so many tiles."""
    if form is SMALL:
        return tiles
    return min(tiles, processors() * (2 if form in (NARROW, LIGHT) else 1))


def is_describable(matrix):
    """Return whether descriptors describe it: contiguous rows or columns, multiples of 16 bytes."""
    short, long = sorted(matrix.strides)
    multiple = long * matrix.dtype.itemsize % 16 == 0
    return short == 1 and multiple and matrix.aligned and 0 not in matrix.shape


def is_turned(factor):
    """Return whether a right factor [depths, columns] lies in memory as its transpose."""
    return factor.strides[0] == 1


def tiles_of(matrix, rows, columns):
    """Return the tiles, rows x columns, of a matrix."""
    shape, strides, block = matrix.shape, matrix.strides, (rows, columns)
    if is_turned(matrix):
        shape, strides, block = shape[::-1], strides[::-1], block[::-1]
    return Tiles(tuple(shape), strides, block)


def is_pair(matrix, distance):
    """Return whether one descriptor describes two such turned matrices, so many bytes apart.

    The stride of a dimension is below 2^40 bytes.
    """
    return is_turned(matrix) and 0 < abs(distance) < 1 << 40


def tiles_of_pair(matrix, distance, rows, columns):
    """Return the tiles of two turned matrices as one, which begins where the lower one does."""
    shape, strides, block = tiles_of(matrix, rows, columns)
    apart = abs(distance) // matrix.dtype.itemsize
    return Tiles((2, *shape), (apart, *strides), (2, *block))
