"""A rotate_half by a kernel or by torch, and the ways by which it decides."""

from common import ops

OP = ops.load("rotate_half")
CASES = {case.name: case for case in OP.tier("smoke", "cpu")}
PLAIN = "10x2x4x8-float32"
EMPTY = next(name for name, case in CASES.items() if not OP.elements(case))
SOURCE = '''
"""Rotates by a kernel or by torch, as `rotate` decides."""
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, half, WIDTH: tl.constexpr, KIND: tl.constexpr):
    row = 2 * half * tl.program_id(0)
    if KIND == 1:
        tl.static_assert(False, "no such kind")
    column = tl.arange(0, WIDTH)
    here = column < half
    tl.store(y + row + column, -tl.load(x + row + half + column, here), here)
    tl.store(y + row + half + column, tl.load(x + row + column, here), here)


def by_kernel(x, kind=0):
    x = x.contiguous()
    y, half = torch.empty_like(x), x.shape[-1] // 2
    if x.numel():
        width = triton.next_power_of_2(half)
        kernel[(x.numel() // (2 * half),)](x, y, half, width, kind)
    return y


def by_torch(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def first_that_works(*ways):
    for way in ways[:-1]:
        try:
            return way()
        except Exception:
            pass
    return ways[-1]()


class Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return rotate(x)

    @staticmethod
    def backward(ctx, grad):
        return -rotate(grad)


def rotate_half(x):
    return Rotated.apply(x)


def rotate(x):
'''
WAYS = {
    "kernel": "    return by_kernel(x)",
    "unless on a GPU": "    return by_kernel(x) if x.is_cuda else by_torch(x)",
    "unless on a CPU": "    return by_torch(x) if x.is_cuda else by_kernel(x)",
    "by environment": (
        "    import os\n"
        "    return by_torch(x) if os.environ['TRITON_INTERPRET'] == '1' else by_kernel(x)"
    ),
    "caught": (
        "    try:\n        return by_kernel(x, 1)\n"
        "    except Exception:\n        return by_torch(x)"
    ),
    "caught by a helper": (
        "    return first_that_works(lambda: by_kernel(x, None + 1), lambda: by_kernel(x, 1),"
        " lambda: by_torch(x))"
    ),
    "by another kernel": (
        "    return first_that_works(lambda: by_kernel(x, 1), lambda: by_kernel(x))"
    ),
    "in float32": "    return by_kernel(x) if x.dtype == torch.float32 else by_torch(x)",
}
