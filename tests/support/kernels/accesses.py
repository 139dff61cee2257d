"""Launches inside and outside of their arguments; each returns the fault that was logged."""

import contextlib
import functools

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
def through_table(table, out, SHIFT: tl.constexpr, N: tl.constexpr):
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + lanes + SHIFT))


@triton.jit
def through_address(x, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x.to(tl.pointer_type(tl.float32)) + lanes))


@triton.jit
def through_integer(x, out, bytes, N: tl.constexpr):
    lanes = tl.arange(0, N)
    address = (bytes + x.to(tl.int64)).to(tl.uint64)
    tl.store(out + lanes, tl.load(address.to(tl.pointer_type(tl.float32)) + lanes))


@triton.jit
def through_reinterpreted(table, out, N: tl.constexpr):
    x = tl.load(table).to(tl.pointer_type(tl.float32)).to(tl.pointer_type(tl.int32))
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x[None] + lanes).to(tl.float32))


@triton.jit
def through_choice(table, x, out, first, N: tl.constexpr):
    lanes = tl.arange(0, N)
    loaded = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + lanes, tl.load(tl.where(lanes < first, loaded, x) + lanes))


@triton.jit
def through_made_block(table, out, n, N: tl.constexpr):
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    source = tl.make_block_ptr(x, (n,), (1,), (0,), (N,), (0,))
    tl.store(out + tl.arange(0, N), tl.load(source))


@triton.jit
def rows_inside(x, out, rows, N: tl.constexpr):
    lanes = tl.arange(0, N)
    inside = (tl.program_id(0) < rows) & (lanes < N)
    tl.store(out + tl.program_id(0) * N + lanes, tl.load(x + lanes), inside)


def sliced(x, out):
    own = torch.randn(2 * N)
    copy[(1,)](own[:N], out, 0, N, N, N)


def of_descriptor(last):
    described = TensorDescriptor(torch.randn(N), [last], [1], [2 * N])
    copy_descriptor[(1,)](described, torch.zeros(2 * N), 2 * N)


def swallowing(x, out):
    with contextlib.suppress(Exception):
        copy[(1,)](x, out, 0, N, 1, N)


def of_what_is_gone(x, out):
    table = torch.tensor([torch.randn(1 << 20).data_ptr()])
    through_table[(1,)](table, out, 0, N)


def to_another_integer(x, out):
    other = torch.randn(N)
    through_integer[(1,)](x, out, other.data_ptr() - x.data_ptr(), N)


def of_a_neighbour(x, out):
    wide = torch.randn(4 * N)
    table = torch.tensor([wide.data_ptr()])
    bounds.WATCH.begin_call({"x": wide[:N]})
    through_table[(1,)](table, out, N, N)


def past_a_view(x, out):
    wide = torch.randn(4 * N)
    bounds.WATCH.begin_call({"x": wide[:N]})
    copy[(1,)](wide[:N], out, 0, N, 1, N)


def table(x):
    return torch.tensor([x.data_ptr()])


def concurrent(x, out, way):
    """Store through `out` behind the end of `x`."""
    store_beside[(1,)](x, out, (x.data_ptr() - out.data_ptr()) // 4 + N, N, way)


def wrapping(x, out, way):
    """Store in a row that 32 bits do not reach, of memory that nobody touches."""
    rows, stride = 50_000, 45_000
    x, out = torch.zeros(N, dtype=torch.int8), torch.empty(rows * stride, dtype=torch.int8)
    first = rows - 4 if way != "too far" else 60_000
    far_row[(4 - (way == "tile"),)](x, out, *[0] * 5, first, stride, N, way)


LAUNCHES = {
    "load past the end": lambda x, out: copy[(1,)](x, out, 0, N, 1, N),
    "store past the end": lambda x, out: copy[(1,)](x, out[:4].clone(), 0, N, 0, N),
    "block pointer": lambda x, out: block[(1,)](x[:7].clone(), out, 7, N, False),
    "block pointer checked": lambda x, out: block[(1,)](x[:7].clone(), out, 7, N, True),
    "atomic": lambda x, out: add[(1,)](out, N),
    "compare and swap": lambda x, out: swap[(1,)](out.int(), 0),
    "compare and swap past the end": lambda x, out: swap[(1,)](out.int(), N),
    "view of an input": past_a_view,
    "masked": lambda x, out: copy[(1,)](x, out, 0, N - 1, 1, N),
    "masked by a scalar too": lambda x, out: rows_inside[(2,)](x, out, 1, N),
    "own storage": sliced,
    "swallowed": swallowing,
    "descriptor": lambda x, out: of_descriptor(N),
    "descriptor too long": lambda x, out: of_descriptor(N + 4),
    "tuple": lambda x, out: copy_first[(1,)]((x, torch.randn(N)), out, 0, N),
    "tuple past the end": lambda x, out: copy_first[(1,)]((x, torch.randn(N)), out, 4, N),
    "amid an element": lambda x, out: through_integer[(1,)](x, out, 30, 1),
    "seven sizes": lambda x, out: shifted[(1,)](x, out, *[N] * 7, N),
    "second of a row": lambda x, out: by_place[(2,)](x, out, N),
    "second of a column": lambda x, out: by_place[(1, 2)](x, out, N),
    "last of all": lambda x, out: by_place[(1, 1, 3)](x, out, N),
}
THROUGH = {
    "table": lambda x, out: through_table[(1,)](table(x), out, 0, N),
    "table past the end": lambda x, out: through_table[(1,)](table(x), out, 1, N),
    "table of what is gone": of_what_is_gone,
    "address": lambda x, out: through_address[(1,)](x.data_ptr(), out, N),
    "integer": lambda x, out: through_integer[(1,)](x, out, 0, N),
    "integer to another": to_another_integer,
    "reinterpreted": lambda x, out: through_reinterpreted[(1,)](table(x), out, N),
    "choice": lambda x, out: through_choice[(1,)](table(x), torch.randn(N), out, 4, N),
    "made block": lambda x, out: through_made_block[(1,)](table(x), out, N, N),
    "input's neighbour": of_a_neighbour,
}
"""The ways to `x` other than an argument that is a tensor."""
BESIDE = ("pointer", "function", "block pointer", "integer")
WRAPPED = ("row", "tile", "bytes", "hash", "too far", "counted")


def fault_of(launch, known=False, **options):
    """Return the fault that a launch leaves; of a graded call with `x`, if `known`."""
    x, out = torch.randn(N), torch.zeros(N)
    bounds.WATCH.begin_call({"x": x} if known else {})
    with contextlib.suppress(triton.runtime.errors.InterpreterError):
        launch(x, out, **options)
    fault = bounds.WATCH.log.fault()
    return fault.text if fault else ""


RUNS = {
    **{name: functools.partial(fault_of, launch, True) for name, launch in LAUNCHES.items()},
    **{f"through {way}": functools.partial(fault_of, launch) for way, launch in THROUGH.items()},
    **{
        f"store by {way}": functools.partial(fault_of, launch, way=way)
        for launch, ways in ((concurrent, BESIDE), (wrapping, WRAPPED))
        for way in ways
    },
}
