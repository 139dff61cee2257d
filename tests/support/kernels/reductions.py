"""Reductions and scans that Triton's interpreter computes element by element, or not at all."""

import inspect
from functools import partial
from unittest import mock

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import ReduceOps, TensorHandle

ROWS, COLUMNS = 4, 64


@triton.jit
def last(a, b):
    return tl.where(b != 0, b, a)


@triton.jit
def kernel(x, out, KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    places = rows * N + columns
    a = tl.load(x + places)
    if KIND == "flip":
        tl.store(out + places, tl.flip(a, 1))
    elif KIND == "sort":
        tl.store(out + places, tl.sort(a, descending=True))
    elif KIND == "topk":
        tl.store(out + rows * 8 + tl.arange(0, 8)[None, :], tl.topk(a, 8))
    elif KIND == "xor":
        tl.store(out + columns, tl.xor_sum(a, 0, keep_dims=True))
    elif KIND == "xor of all":
        tl.store(out, tl.xor_sum(a))
    elif KIND == "an axis from the end":
        tl.store(out + rows, tl.reduce(a, -1, last, keep_dims=True))
    elif KIND == "the last axis":
        tl.store(out + rows, tl.reduce(a, 1, last, keep_dims=True))


XORS = "flip", "sort", "topk", "xor", "xor of all"
FROM_THE_END = "an axis from the end"
MADE = []
init = TensorHandle.__init__
TensorHandle.__init__ = lambda self, *values: MADE.append(1) or init(self, *values)
BY_ELEMENTS = inspect.unwrap(ReduceOps.apply_impl)


def launched(kind):
    """Return what the kernel writes, and how many operands are made."""
    torch.manual_seed(0)
    x = torch.randint(-9, 10, (ROWS, COLUMNS), dtype=torch.int32)
    out = torch.zeros(ROWS * COLUMNS, dtype=torch.int32)
    MADE.clear()
    kernel[(1,)](x, out, kind, ROWS, COLUMNS)
    return out.tolist(), len(MADE)


def compared(kind):
    """Return whether the values are those of Triton's own way, element by element, or faster."""
    found, made = launched(kind)
    with mock.patch.object(ReduceOps, "apply_impl", BY_ELEMENTS):
        # of an axis from the end Triton's own way fails
        wanted, most = launched(kind.replace(FROM_THE_END, "the last axis"))
    return found == wanted and any(found), 10 * made < most


CASES = {kind: (partial(compared, kind), (True, True)) for kind in XORS}
CASES[FROM_THE_END] = partial(compared, FROM_THE_END), (True, False)
