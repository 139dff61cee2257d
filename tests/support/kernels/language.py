"""Kernels that a GPU's compiler takes and Triton's interpreter alone does not."""

import functools
import linecache

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.language import arange, load, store
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents
from triton.language.extra.libdevice import exp2, rint

N = 8


@triton.jit
def counting(x, out, n, N: tl.constexpr):
    for first in tl.range(tl.program_id(0), n, 4, num_stages=2):
        for i in range(0, 4):
            at = first.to(tl.int64) + i.to(tl.int64)
            tl.store(out + at, tl.load(x + at))


@triton.jit
def wide(x, out, n, N: tl.constexpr):
    for i in range(tl.program_id(0).to(tl.int64), n):
        tl.store(out + i, tl.load(x + i * 2**20 * 2**20 // 2**40))


def capturing():
    size = tl.constexpr(N)

    @triton.jit
    def copied(x, lanes):
        return tl.load(x + lanes)

    @triton.jit
    def kernel(x, out, n, N: tl.constexpr):
        lanes = tl.arange(0, size)
        tl.store(out + lanes, copied(x, lanes))

    return kernel


@triton.jit
def importing(x, out, n, N: tl.constexpr):
    store(out + arange(0, N), load(x + arange(0, N)))


@triton.jit
def named_whole(x, out, n, N: triton.language.constexpr):
    lanes = triton.language.arange(0, N)
    triton.language.store(out + lanes, triton.language.load(x + lanes))


ELSEWHERE = """
@triton.jit
def elsewhere(x, lanes):
    return triton.language.load(x + lanes)
"""
linecache.cache["elsewhere.py"] = (0, None, ELSEWHERE.splitlines(True), "elsewhere.py")
space = {"triton": triton, "__name__": "elsewhere"}
exec(compile(ELSEWHERE, "elsewhere.py", "exec"), space)
elsewhere = space["elsewhere"]


@triton.jit
def calling(x, out, n, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, elsewhere(x, lanes))


ONE = tl.constexpr(1)


@triton.jit
def by_constants(x, out, n, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, ONE * tl.load(x + lanes))


@triton.jit
def dependent(x, out, n, N: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    tl.store(out + tl.arange(0, N), tl.load(x + tl.arange(0, N)))
    gdc_launch_dependents()


@triton.jit
def of_libdevice(x, out, n, N: tl.constexpr):
    """Twice x, by functions under each of their names, over two."""
    a = tl.load(x + tl.arange(0, N))
    once = libdevice.pow(1 / libdevice.rsqrt(a), 2)
    twice = once + tl.extra.cuda.libdevice.log2(exp2(a))
    tl.static_assert(libdevice.llrint(a).dtype == tl.int64)
    tl.store(out + tl.arange(0, N), rint(libdevice.fast_dividef(twice, 2.0)))


@triton.jit
def scaled_complement(x, out, n, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), libdevice.erfcx(tl.load(x + tl.arange(0, N))))


@triton.jit
def same(value):
    return value


@triton.jit
def mapped(x, out, n, N: tl.constexpr):
    value = tl.map_elementwise(same, tl.load(x + tl.arange(0, N)))
    tl.store(out + tl.arange(0, N), value)


@gluon.jit
def of_gluon(x, out, n, N: tl.constexpr):
    pass


@triton.jit
def chosen(x, out, n, N: tl.constexpr, all=True):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + lanes, mask=all & (lanes < n)))


@triton.jit
def scaled_by_a_float(x, out, n, N: tl.constexpr, scale=0.1):
    lanes = tl.arange(0, N)
    a = tl.load(x + lanes)
    tl.static_assert((a.to(tl.float16) * scale).dtype == tl.float32)
    tl.static_assert((a.to(tl.bfloat16) * scale).dtype == tl.float32)
    tl.static_assert((n * scale).dtype == tl.float32)
    tl.store(out + lanes, a * (scale.to(tl.float32) / scale))


@triton.jit
def annotated(
    x, out, n: tl.int64, N: tl.constexpr, third: tl.float64 = 1 / 3, half: tl.float16 = 0.5
):
    tl.static_assert(n.dtype == tl.int64 and half.dtype == tl.float16)
    shift = n * 2**29 // 2**29 - n + (tl.abs(third * 3 - 1) < 1e-15).to(tl.int64) - 1
    tl.store(out + tl.arange(0, N), tl.load(x + tl.arange(0, N) + shift))


@triton.jit
def logical(x, out, n, N: tl.constexpr, missing=None):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    row = (i < 1) and (j < n)
    if missing is not None and tl.load(missing) > 0:
        row = i < 0
    tl.store(out + i * N + j, tl.load(x + i * N + j, mask=row), mask=row and not (i > 0 or j >= n))


@triton.jit
def product(x, out, n, N: tl.constexpr):
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    a = tl.load(x + j, (i == 0) & (j < n), other=0.0)
    whole = tl.dot(a, (i == j).to(tl.float32), input_precision="bf16x6")
    tl.store(out + j + 0 * i, whole, (i == 0) & (j < n))


@triton.jit
def scaled(x, out, n, N: tl.constexpr):
    a = tl.zeros((32, 32), tl.bfloat16)
    tl.store(out, tl.sum(tl.dot_scaled(a, None, "bf16", a, None, "bf16")))


def grid(given):
    assert type(given["n"]) is int and given["x"].numel() == given["N"]
    return [given["n"] // given["N"]]


class Pointer:
    """What Triton takes for a tensor."""

    def __init__(self, tensor):
        self.tensor, self.dtype = tensor, tensor.dtype

    def data_ptr(self):
        return self.tensor.data_ptr()


KERNELS = {
    "loops": (counting, (1,)),
    "loops in 64 bits": (wide, (1,)),
    "captured names": (capturing(), (1,)),
    "imported names": (importing, (1,)),
    "whole names": (named_whole, (1,)),
    "a module without the language": (calling, (1,)),
    "a grid of arguments": (counting, grid),
    "a boolean": (chosen, (1,)),
    "a float": (scaled_by_a_float, (1,)),
    "annotated numbers": (annotated, (1,)),
    "logical operators": (logical, (1,)),
    "a product of bf16x6": (product, (1,)),
    "constants beside tensors": (by_constants, (1,)),
    "an object for a pointer": (chosen, (1,), Pointer),
    "dependent launches": (dependent, (1,)),
    "libdevice": (of_libdevice, (1,)),
    "a function that NumPy lacks": (scaled_complement, (1,)),
    "a missing operation": (mapped, (1,)),
    "a scaled product": (scaled, (1,)),
    "gluon": (of_gluon, (1,)),
}


def launched(kernel, place, wrapper=lambda x: x):
    x, out = torch.arange(float(N)), torch.zeros(N)
    kernel[place](wrapper(x), out, N, N)
    return out


RUNS = {name: functools.partial(launched, *call) for name, call in KERNELS.items()}
