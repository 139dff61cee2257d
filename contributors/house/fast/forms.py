"""The forms of a launch: by descriptors on Hopper, by pointers elsewhere, small for small products.

The tensor memory accelerator (TMA) copies a tile by a descriptor: one thread asks for it, and
elements outside of the matrix read as zero. Other devices, the interpreter, float32 and matrices
that no descriptor can describe take pointers and masks. A small product takes a form that is
compiled once for a dtype and serves all sizes and strides.
"""

import functools
from typing import NamedTuple

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from .launch import ceil_div


class Form(NamedTuple):
    """The constants of a product's launch; a kernel takes them as one."""

    M: int  # rows of a tile of the product
    N: int  # columns of it
    K: int  # the depth of one step
    TMA: bool  # whether tiles are loaded by descriptors
    warps: int
    stages: int
    programs: int = 1  # that share a multiprocessor

    @property
    def options(self):
        """The options of a launch."""
        return {"FORM": self, "num_warps": self.warps, "num_stages": self.stages}

    def programs_for(self, tiles):
        """Return how many programs go through so many tiles."""
        return tiles if self is SMALL else min(tiles, gpu().processors * self.programs)


# Two groups of warps each add up 64 x 256 products, the most that registers hold; four stages of
# both factors and a quarter of a tile to store fill the shared memory.
HOPPER = Form(128, 256, 64, True, warps=8, stages=4)
SHORT = HOPPER._replace(M=64, warps=4)
"""For few tokens."""
NARROW = HOPPER._replace(N=128, stages=3, programs=2)
"""For few columns; two programs share a multiprocessor."""
LIGHT = NARROW._replace(warps=4)
"""For a long epilogue: of two programs on a multiprocessor, one stores while one multiplies."""
# Fits into 99 KB of shared memory, the least of today's GPUs of NVIDIA, in float32 too.
PLAIN = Form(128, 128, 32, False, warps=8, stages=3)
# A compiler's time for a product of float32 grows with the tile; a small product needs no stages.
# Sums over tokens go by K rows, which must divide a partition's tiles of M. No other form has M.
SMALL = Form(32, 64, 32, False, warps=4, stages=1)
FEW = 1 << 26
"""Products of two numbers, below which an op is small: it takes microseconds in any form."""


def is_transposed(matrix):
    """Return whether a matrix lies in memory as the rows of its transpose."""
    return matrix.stride()[0] == 1


def is_describable(matrix):
    """Return whether rows or columns are contiguous, and multiples of 16 bytes."""
    short, long = sorted(matrix.stride())
    multiple = long * matrix.dtype.itemsize % 16 == 0
    return short == 1 and multiple and matrix.data_ptr() % 16 == 0 and 0 not in matrix.shape


def tiles_of(form, matrix, rows, columns, pair=None):
    """Return what a kernel loads tiles [rows, columns] from: a descriptor, or the matrix itself.

    One of a transposed matrix has the tiles' transposes. pair: how many bytes behind such a matrix,
    or before it, another one begins: its descriptor has both, and tiles [2, columns, rows].
    """
    if not form.TMA:
        return matrix
    if not is_transposed(matrix):
        return TensorDescriptor.from_tensor(matrix, [rows, columns])
    if pair is None:
        return TensorDescriptor.from_tensor(matrix.T, [columns, rows])
    strides = abs(pair) // matrix.dtype.itemsize, *matrix.stride()[::-1]
    return TensorDescriptor(matrix, [2, *matrix.shape[::-1]], strides, [2, columns, rows])


def height_of(x, w, weights=1):
    """Return the rows of a partition's tiles for x [tokens, depths] and weights [columns, depths].

    They are 32 where the op is small, and 64 where tiles of 128 would take longer.
    """
    if not len(x.shape) == len(w.shape) == 2:
        raise ValueError(f"x {list(x.shape)} and weight {list(w.shape)} are no matrices")
    (tokens, depths), columns = x.shape, w.shape[0] * weights
    if tokens * depths * columns < FEW:
        return SMALL.M
    low, high = (
        ceil_div((ceil_div(tokens, rows) + 1) * ceil_div(columns, 256), gpu().processors)
        for rows in (64, 128)
    )
    # all processors take a tile at a time; one of 64 rows takes a little more than half as long
    return 64 if 11 * low < 20 * high else 128


def form_of(*matrices, pairs=(), height=128, shape=None):
    """Return the form of a launch for matrices that descriptors would describe.

    pairs: distances of transposed ones, of which one would describe two; height: the rows of a
    partition's tile; shape: that of the product, where it may be narrow.
    """
    if height == SMALL.M:
        return SMALL
    fits = all(map(is_describable, matrices))
    fits &= all(is_transposed(matrices[0]) and 0 < abs(pair) < 1 << 40 for pair in pairs)
    if matrices[0].dtype.itemsize != 2 or not fits or not gpu().hopper:
        # an MI300X has 64 KB of shared memory
        return PLAIN._replace(M=height, **({"N": 64, "stages": 2} if gpu().amd else {}))
    if height == 64:
        return SHORT
    tiles = ceil_div(shape[0], 128) * ceil_div(shape[1], 256) if shape else gpu().processors
    return NARROW if tiles < gpu().processors else HOPPER


@functools.cache
def kernel_of(kernel, tile):
    """Return the kernel; for small tiles, one that no fact of its integers is compiled into."""
    if tile != SMALL.M:
        return kernel
    values = [name for name in kernel.arg_names if name not in kernel.fn.__annotations__]
    return triton.jit(kernel.fn, do_not_specialize=values)


def overlapping(form, triggers=False):
    """Return the options of a launch that begins while the one before it still runs.

    If it triggers, the next one begins while it runs, in the registers that it leaves.
    """
    if not (form.TMA and gpu().hopper):
        return {}
    begins = {"PDL": True, "launch_pdl": True}
    return {**begins, "TRIGGERS": True, "maxnreg": 224} if triggers else begins


class GPU(NamedTuple):
    """Facts of the GPU that sizes of launches follow from."""

    hopper: bool = False  # compute capability 9.0
    amd: bool = False
    processors: int = 132  # multiprocessors


@functools.cache
def gpu():
    """Return the current GPU; where there is none, one with as many processors as an H100."""
    if triton.knobs.runtime.interpret:
        return GPU()
    try:
        driver = triton.runtime.driver.active
        target = driver.get_current_target()
        found = driver.utils.get_device_properties(driver.get_current_device())
    except (RuntimeError, ImportError):
        return GPU()
    hopper = target.backend == "cuda" and target.arch == 90
    return GPU(hopper, target.backend == "hip", found["multiprocessor_count"])
