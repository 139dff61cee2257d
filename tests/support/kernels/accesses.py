"""Launches inside and outside of their arguments; each returns the fault that it leaves."""

import contextlib
import re
from functools import partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from common.sandbox.interpreter import bounds

N = 8


@triton.jit
def copy(x, out, first, last, SHIFT: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    mask = (lanes >= first) & (lanes < last)
    tl.store(out + lanes, tl.load(x + lanes + SHIFT, mask=mask, other=0.0))


@triton.jit
def block(x, out, n, N: tl.constexpr, CHECK: tl.constexpr):
    source = tl.make_block_ptr(x, (n,), (1,), (0,), (N,), (0,))
    if CHECK:
        value = tl.load(source, boundary_check=(0,), padding_option="zero")
    else:
        value = tl.load(source)
    tl.store(out + tl.arange(0, N), value)


@triton.jit
def shifted(x, out, a, b, c, d, e, f, g, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + lanes + g))


@triton.jit
def by_place(x, out, n):
    last = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2) - 1
    program = tl.program_id(0) + tl.program_id(1) + tl.program_id(2)
    tl.store(out + program, tl.load(x + program // last * n))


@triton.jit
def add(out, index):
    tl.atomic_add(out + index, 1.0)


@triton.jit
def copy_descriptor(x, out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), x.load([0]))


@triton.jit
def copy_first(pair, out, SHIFT: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(pair[0] + lanes + SHIFT) + tl.load(pair[1] + lanes))


@triton.jit
def swap(out, index):
    tl.atomic_cas(out + index, 0, 1)


@triton.jit
def moved(pointers, offset):
    return pointers + offset


@triton.jit
def store_beside(x, out, distance, N: tl.constexpr, WAY: tl.constexpr):
    lanes = tl.arange(0, N)
    value = tl.load(x + lanes)
    if WAY == "function":
        tl.store(moved(out, distance) + lanes, value)
    elif WAY == "block pointer":
        tl.store(tl.make_block_ptr(out, (N,), (1,), (distance,), (N,), (0,)), value)
    elif WAY == "integer":
        address = (out.to(tl.int64) + 4 * distance).to(tl.pointer_type(tl.float32))
        tl.store(address + lanes, value)
    else:
        tl.store(tl.broadcast_to(out, (N,)) + lanes + distance, value)


@triton.jit
def far_row(x, out, a, b, c, d, e, first, stride, N: tl.constexpr, WAY: tl.constexpr):
    lanes = tl.arange(0, N)
    row = first + tl.program_id(0)
    value = tl.load(x + lanes)
    if WAY == "tile":
        rows = row + tl.arange(0, 2)[:, None]
        tl.store(moved(out, rows * stride) + lanes[None, :], value[None, :])
    elif WAY == "bytes":
        tl.store(out + (row * stride - stride + lanes).to(tl.int64) + stride, value)
    elif WAY == "counted":
        tl.atomic_add(x.to(tl.pointer_type(tl.int32)), 1)
        tl.store(out + row * stride + lanes, value)
    elif WAY == "hash":
        tl.store(out - 1 - row * stride % 2 + 0 * lanes, value)
    else:
        tl.store(out + row * stride + lanes, value)


@triton.jit
def through(source, x, out, number, N: tl.constexpr, WAY: tl.constexpr):
    lanes = tl.arange(0, N)
    if WAY == "address":
        pointers = source.to(tl.pointer_type(tl.float32)) + lanes
    elif WAY == "integer":
        pointers = (number + x.to(tl.int64)).to(tl.uint64).to(tl.pointer_type(tl.float32)) + lanes
    else:
        loaded = tl.load(source).to(tl.pointer_type(tl.float32))
        if WAY == "table":
            pointers = loaded + lanes + number
        elif WAY == "reinterpreted":
            pointers = loaded.to(tl.pointer_type(tl.int32))[None] + lanes
        elif WAY == "choice":
            pointers = tl.where(lanes < number, loaded, x) + lanes
        else:
            pointers = tl.make_block_ptr(loaded, (number,), (1,), (0,), (N,), (0,))
    tl.store(out + lanes, tl.load(pointers).to(tl.float32))


@triton.jit
def rows_inside(x, out, rows, N: tl.constexpr):
    lanes = tl.arange(0, N)
    inside = (tl.program_id(0) < rows) & (lanes < N)
    tl.store(out + tl.program_id(0) * N + lanes, tl.load(x + lanes), inside)


def of_descriptor(last):
    described = TensorDescriptor(torch.randn(N), [last], [1], [2 * N])
    copy_descriptor[(1,)](described, torch.zeros(2 * N), 2 * N)


def swallowing(x, out):
    with contextlib.suppress(Exception):
        copy[(1,)](x, out, 0, N, 1, N)


def of_what_is_gone(x, out):
    table = torch.tensor([torch.randn(1 << 20).data_ptr()])
    through[(1,)](table, x, out, 0, N, "table")


def to_another_integer(x, out):
    other = torch.randn(N)
    through[(1,)](x, x, out, other.data_ptr() - x.data_ptr(), N, "integer")


def past_a_view(x, out, way=""):
    wide = torch.randn(4 * N)
    bounds.WATCH.begin_call({"x": wide[:N]})
    if way:
        through[(1,)](table(wide), out, out, N, N, way)
    else:
        copy[(1,)](wide[:N], out, 0, N, 1, N)


def table(x):
    return torch.tensor([x.data_ptr()])


def loading(x, out, number, way):
    """Reach `x` by its address in a table alone: it is no argument."""
    through[(1,)](table(x), torch.randn(N), out, number, N, way)


def beside(x, out, way):
    """Store through `out` behind the end of `x`."""
    store_beside[(1,)](x, out, (x.data_ptr() - out.data_ptr()) // 4 + N, N, way)


def wrapping(x, out, way):
    """Store in a row that 32 bits do not reach, of memory that nobody touches."""
    rows, stride = 50_000, 45_000
    x, out = torch.zeros(N, dtype=torch.int8), torch.empty(rows * stride, dtype=torch.int8)
    first = rows - 4 if way != "too far" else 60_000
    far_row[(4 - (way == "tile"),)](x, out, *[0] * 5, first, stride, N, way)


LINE = r", line \d+ of accesses.py: (tl\.)?"
NOTHING = ""


def told(element, sizes="", program="0,", line="load"):
    """Return the pattern of a fault: the program, its sizes and the element, and the line."""
    return re.escape(f"program ({program}){sizes and ', '}{sizes}: {element}") + LINE + line


READ, READ_LIVE = "reads x + 8 of 8", told("reads a live tensor + 8 of 8", "number=8")
COPIED = told(READ, "first=0, last=8")
UPDATED = told("updates out + 8 of 8", "index=8", line="atomic")
LAUNCHES = {
    "load past the end": (lambda x, out: copy[(1,)](x, out, 0, N, 1, N), COPIED),
    "store past the end": (lambda x, out: copy[(1,)](x, out[:4].clone(), 0, N, 0, N),
                           told("writes out + 4 of 4", "first=0, last=8", line="store")),
    "block pointer": (lambda x, out: block[(1,)](x[:7].clone(), out, 7, N, False),
                      told("reads x + 7 of 7", "n=7")),
    "block pointer checked": (lambda x, out: block[(1,)](x[:7].clone(), out, 7, N, True), NOTHING),
    "atomic": (lambda x, out: add[(1,)](out, N), UPDATED),
    "compare and swap": (lambda x, out: swap[(1,)](out.int(), 0), NOTHING),
    "compare and swap past the end": (lambda x, out: swap[(1,)](out.int(), N), UPDATED),
    "view of an input": (past_a_view, COPIED),
    "masked": (lambda x, out: copy[(1,)](x, out, 0, N - 1, 1, N), NOTHING),
    "masked by a scalar too": (lambda x, out: rows_inside[(2,)](x, out, 1, N), NOTHING),
    "own storage": (lambda x, out: copy[(1,)](torch.randn(2 * N)[:N], out, 0, N, N, N), NOTHING),
    "swallowed": (swallowing, COPIED),
    "descriptor": (lambda x, out: of_descriptor(N), NOTHING),
    "descriptor too long": (lambda x, out: of_descriptor(N + 4), told(READ, line="x.load")),
    "tuple": (lambda x, out: copy_first[(1,)]((x, torch.randn(N)), out, 0, N), NOTHING),
    "tuple past the end": (lambda x, out: copy_first[(1,)]((x, torch.randn(N)), out, 4, N),
                           told("reads pair[0] + 8 of 8")),
    "amid an element": (lambda x, out: through[(1,)](x, x, out, 30, 1, "integer"),
                        told("reads x + 30 bytes of 32 bytes", "number=30")),
    "seven sizes": (lambda x, out: shifted[(1,)](x, out, *[N] * 7, N),
                    told(READ, "a=8, b=8, c=8, d=8, e=8, f=8")),
    "second of a row": (lambda x, out: by_place[(2,)](x, out, N), told(READ, "n=8", "1,")),
    "second of a column": (lambda x, out: by_place[(1, 2)](x, out, N), told(READ, "n=8", "0, 1")),
    "last of all": (lambda x, out: by_place[(1, 1, 3)](x, out, N), told(READ, "n=8", "0, 0, 2")),
}  # fmt: skip
THROUGH = {
    "table past the end": (lambda x, out: loading(x, out, N, "table"), READ_LIVE),
    "address": (lambda x, out: through[(1,)](x.data_ptr(), out, out, 0, N, "address"), NOTHING),
    "integer": (lambda x, out: through[(1,)](x, x, out, 0, N, "integer"), NOTHING),
    **{way: (partial(loading, number=number, way=way), NOTHING)
       for way, number in {"table": 0, "reinterpreted": 0, "choice": 4, "block": N}.items()},
    "input's neighbour": (partial(past_a_view, way="table"), READ_LIVE),
    "table of what is gone": (of_what_is_gone, re.escape("program (0,), number=0: reads ")),
    "integer to another": (to_another_integer, re.escape("program (0,), ")),
}  # fmt: skip
"""The ways to `x` other than an argument that is a tensor. An address that was loaded leads to live
tensors, one that was computed to its argument."""
BESIDE = ("pointer", "function", "block pointer", "integer")
"""The line's pointer is named, though another tensor is nearer."""
WRAPPED = {"row": "row * stride", "tile": "rows * stride", "bytes": "row * stride"}
"""An offset that left 32 bits is named with its product and its arguments."""
WRAP = (
    rf"program \(0,\): writes out - 2045147296 of .*{LINE}store.*, since its offset "
    rf"wrapped: 49996 \* 45000 does not fit int32{LINE}"
)
NOT_WRAPPED = ("hash", "too far", "counted")
"""A product that decides nothing; and one that is not repeated, after an update of memory: if the
program ran twice, a lock would never open."""


def fault_of(launch, known=False, **options):
    """Return the fault that a launch leaves; of a graded call with `x`, if `known`."""
    x, out = torch.randn(N), torch.zeros(N)
    bounds.WATCH.begin_call({"x": x} if known else {})
    with contextlib.suppress(triton.runtime.errors.InterpreterError):
        launch(x, out, **options)
    fault = next(iter(bounds.WATCH.faults), None)
    return fault.text if fault else NOTHING


CASES = {
    **{name: (partial(fault_of, launch, True), text) for name, (launch, text) in LAUNCHES.items()},
    **{f"through {name}": (partial(fault_of, launch), text)
       for name, (launch, text) in THROUGH.items()},
    **{f"beside by {way}": (partial(fault_of, beside, way=way),
                            rf".*: writes out [+-] \d+ of 8{LINE}") for way in BESIDE},
    **{f"wrapped by {way}": (partial(fault_of, wrapping, way=way), WRAP + re.escape(product) + "$")
       for way, product in WRAPPED.items()},
    **{f"not wrapped by {way}": (partial(fault_of, wrapping, way=way),
                                 "(?!.*wrapped).*writes out - ") for way in NOT_WRAPPED},
}  # fmt: skip
