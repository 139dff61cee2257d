"""Kernels that a GPU's compiler takes and Triton's interpreter alone does not."""

import linecache
from functools import partial
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.language import arange, load, store
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents
from triton.language.extra.libdevice import exp2, rint

from tests.support.interpreting import UNSUPPORTED

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
def same(value):
    return value


@triton.jit
def by_kind(x, out, n, N: tl.constexpr, KIND: tl.constexpr, scale=0.1):
    lanes, i, j = tl.arange(0, N), tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    a = tl.load(x + lanes)
    if KIND == "constants beside tensors":
        tl.store(out + lanes, ONE * a)
    elif KIND == "a float":
        tl.static_assert((a.to(tl.float16) * scale).dtype == tl.float32)
        tl.static_assert((a.to(tl.bfloat16) * scale).dtype == tl.float32)
        tl.static_assert((n * scale).dtype == tl.float32)
        a *= scale.to(tl.float32) / scale
    elif KIND == "dependent launches":
        tl.extra.cuda.gdc_wait()
        gdc_launch_dependents()
    elif KIND == "an exchange of floats":
        a = tl.atomic_xchg(out + lanes, a) + tl.load(out + lanes)
    elif KIND == "libdevice":  # twice a, by functions under each of their names, over two
        twice = libdevice.pow(1 / libdevice.rsqrt(a), 2) + tl.extra.cuda.libdevice.log2(exp2(a))
        tl.static_assert(libdevice.llrint(a).dtype == tl.int64)
        a = rint(libdevice.fast_dividef(twice, 2.0))
    elif KIND == "a function that NumPy lacks":
        a = libdevice.erfcx(a)
    elif KIND == "a missing operation":
        a = tl.map_elementwise(same, a)
    elif KIND == "a scaled product":
        zeros = tl.zeros((32, 32), tl.bfloat16)
        a += tl.sum(tl.dot_scaled(zeros, None, "bf16", zeros, None, "bf16"))
    elif KIND == "a product of bf16x6":
        row = tl.load(x + j, (i == 0) & (j < n), other=0.0)
        whole = tl.dot(row, (i == j).to(tl.float32), input_precision="bf16x6")
        tl.store(out + j + 0 * i, whole, (i == 0) & (j < n))
    if KIND != "a product of bf16x6":
        tl.store(out + lanes, a)


@gluon.jit
def of_gluon(x, out, n, N: tl.constexpr):
    pass


@triton.jit
def chosen(x, out, n, N: tl.constexpr, all=True):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + lanes, mask=all & (lanes < n)))


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


def grid(given):
    assert type(given["n"]) is int and given["x"].numel() == given["N"]
    return [given["n"] // given["N"]]


def pointer(tensor):
    """Return an object that Triton takes for a tensor."""
    return SimpleNamespace(data_ptr=tensor.data_ptr, dtype=tensor.dtype)


def launched(kernel, *kind, grid=(1,), wrapper=lambda x: x):
    x, out = torch.arange(float(N)), torch.zeros(N)
    kernel[grid](wrapper(x), out, N, N, *kind)
    return out


KINDS = (
    "constants beside tensors", "a float", "dependent launches", "an exchange of floats",
    "libdevice", "a product of bf16x6",
)  # fmt: skip
CALLS = {
    "loops": partial(launched, counting),
    "loops in 64 bits": partial(launched, wide),
    "captured names": partial(launched, capturing()),
    "imported names": partial(launched, importing),
    "whole names": partial(launched, named_whole),
    "a module without the language": partial(launched, calling),
    "a grid of arguments": partial(launched, counting, grid=grid),
    "a boolean": partial(launched, chosen),
    "annotated numbers": partial(launched, annotated),
    "logical operators": partial(launched, logical),
    "an object for a pointer": partial(launched, chosen, wrapper=pointer),
    **{kind: partial(launched, by_kind, kind) for kind in KINDS},
}
REFUSED = {
    "a function that NumPy lacks": "libdevice.erfcx",
    "a missing operation": "no new_block",
    "a scaled product": "tl.dot_scaled",
}
"""What the interpreter cannot run, and what is said of it."""
CASES = {
    **{name: (call, torch.arange(float(N))) for name, call in CALLS.items()},
    **{kind: (partial(launched, by_kind, kind), f"{UNSUPPORTED}.*{told}")
       for kind, told in REFUSED.items()},
    "gluon": (partial(launched, of_gluon), f"{UNSUPPORTED}.*Gluon"),
}  # fmt: skip
