"""Launches inside and outside of their arguments; prints the faults that were logged, as JSON."""

import contextlib
import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from common.sandbox.interpreter import bounds, patches

N = 8


@triton.jit
def copy(x, out, first, last, SHIFT: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    mask = (lanes >= first) & (lanes < last)
    tl.store(out + lanes, tl.load(x + lanes + SHIFT, mask=mask, other=0.0))


@triton.jit
def store(x, out, SHIFT: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes * SHIFT, tl.load(x + lanes))


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
def from_other(x, y, out, distance, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + distance + lanes) + tl.load(y + lanes))


@triton.jit
def copy_descriptor(x, out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), x.load([0]))


@triton.jit
def copy_made(x, out, n, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, (n,), (1,), (N,))
    tl.store(out + tl.arange(0, N), source.load([0]))


@triton.jit
def copy_first(pair, out, SHIFT: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(pair[0] + lanes + SHIFT) + tl.load(pair[1] + lanes))


@triton.jit
def swap(out, index):
    tl.atomic_cas(out + index, 0, 1)


@triton.jit
def store_block(x, out, n, N: tl.constexpr, CHECK: tl.constexpr):
    target = tl.make_block_ptr(out, (n,), (1,), (0,), (N,), (0,))
    value = tl.load(x + tl.arange(0, N))
    if CHECK:
        tl.store(target, value, boundary_check=(0,))
    else:
        tl.store(target, value)


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
    elif WAY == "counted":
        tl.atomic_add(x, 1.0)
        tl.store(out + distance + lanes, value)
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


def run_through(name):
    """Launch a kernel that gets to `x` by another way than an argument that is a tensor."""
    x, out = torch.randn(N), torch.zeros(N)
    table = torch.tensor([x.data_ptr()])
    if name == "table":
        through_table[(1,)](table, out, 0, N)
    elif name == "table past the end":
        through_table[(1,)](table, out, 1, N)
    elif name == "table of what is gone":
        gone = torch.randn(1 << 20)
        table[0] = gone.data_ptr()
        del gone
        through_table[(1,)](table, out, 0, N)
    elif name == "address":
        through_address[(1,)](x.data_ptr(), out, N)
    elif name == "integer":
        through_integer[(1,)](x, out, 0, N)
    elif name == "integer to another":
        other = torch.randn(N)
        through_integer[(1,)](x, out, other.data_ptr() - x.data_ptr(), N)
    elif name == "reinterpreted":
        through_reinterpreted[(1,)](table, out, N)
    elif name == "choice":
        through_choice[(1,)](table, torch.randn(N), out, 4, N)
    elif name == "made block":
        through_made_block[(1,)](table, out, N, N)
    elif name == "input's neighbour":
        wide = torch.randn(4 * N)
        table[0] = wide.data_ptr()
        view = wide[:N]
        bounds.WATCH.begin_call({"x": view})
        del wide
        through_table[(1,)](table, out, N, N)


BESIDE = ("pointer", "function", "block pointer", "integer", "counted")
WRAPPED = ("row", "tile", "bytes", "hash", "too far")


def store_outside(way):
    """Store through `out` behind the end of `x`, or in a row that 32 bits do not reach."""
    if way in BESIDE:
        x, out = torch.zeros(N), torch.zeros(N)
        distance = (x.data_ptr() - out.data_ptr()) // 4 + N
        store_beside[(1,)](x, out, distance, N, way)
    else:  # memory that nobody touches takes addresses alone
        rows, stride = 50_000, 45_000
        x, out = torch.zeros(N, dtype=torch.int8), torch.empty(rows * stride, dtype=torch.int8)
        first = rows - 4 if way != "too far" else 60_000
        far_row[(4 - (way == "tile"),)](x, out, *[0] * 5, first, stride, N, way)


WAYS = (
    "table", "table past the end", "table of what is gone", "address", "integer",
    "integer to another", "reinterpreted", "choice", "made block", "input's neighbour",
)  # fmt: skip


@triton.jit
def rows_inside(x, out, rows, N: tl.constexpr):
    lanes = tl.arange(0, N)
    inside = (tl.program_id(0) < rows) & (lanes < N)
    tl.store(out + tl.program_id(0) * N + lanes, tl.load(x + lanes), inside)


GRIDS = {"second of a row": (2,), "second of a column": (1, 2), "last of all": (1, 1, 3)}


def run(name):
    x, out = torch.randn(N), torch.zeros(N)
    wide = torch.randn(4 * N)
    bounds.WATCH.begin_call({"x": x} if name != "view of an input" else {"x": wide[:N]})
    if name == "load past the end":
        copy[(1,)](x, out, 0, N, 1, N)
    elif name == "load before the start":
        copy[(1,)](x, out, 0, N, -2, N)
    elif name == "store past the end":
        store[(1,)](torch.randn(4), out[:4].clone(), 2, 4)
    elif name == "block pointer":
        block[(1,)](x[:7].clone(), out, 7, N, False)
    elif name == "atomic":
        add[(1,)](out, N)
    elif name == "view of an input":
        copy[(1,)](wide[:N], out, 0, N, 1, N)
    elif name == "masked":
        copy[(1,)](x, out, 0, N - 1, 1, N)
    elif name == "block pointer checked":
        block[(1,)](x[:7].clone(), out, 7, N, True)
    elif name == "amid an element":
        through_integer[(1,)](x, out, 30, 1)
    elif name == "seven sizes":
        shifted[(1,)](x, out, *[N] * 7, N)
    elif name == "masked by a scalar too":
        rows_inside[(2,)](x, out, 1, N)
    elif name in GRIDS:
        by_place[GRIDS[name]](x, out, N)
    elif name == "own storage":
        own = torch.randn(2 * N)
        copy[(1,)](own[:N], out, 0, N, N, N)
    elif name == "another argument":
        both = torch.randn(N), torch.randn(N)
        distance = (both[1].data_ptr() - both[0].data_ptr()) // 4
        from_other[(1,)](both[0], both[1], out, distance, N)
    elif name.startswith("descriptor"):
        last = N + 4 * name.endswith("too long")
        copy_descriptor[(1,)](TensorDescriptor(x, [last], [1], [2 * N]), torch.zeros(2 * N), 2 * N)
    elif name.startswith("made descriptor"):
        last = N + 4 * name.endswith("too long")
        copy_made[(1,)](x, torch.zeros(2 * N), last, 2 * N)
    elif name.startswith("tuple"):
        copy_first[(1,)]((x, torch.randn(N)), out, 4 * name.endswith("past the end"), N)
    elif name.startswith("compare and swap"):
        swap[(1,)](torch.zeros(N, dtype=torch.int32), N * name.endswith("past the end"))
    elif name.startswith("block pointer's store"):
        store_block[(1,)](x, out[:7].clone(), 7, N, name.endswith("checked"))
    elif name == "swallowed":
        with contextlib.suppress(Exception):
            copy[(1,)](x, out, 0, N, 1, N)


def main() -> None:
    patches.install()
    torch.manual_seed(0)
    seen = {}
    for name in (
        "load past the end", "load before the start", "store past the end", "block pointer",
        "atomic", "view of an input", "masked", "block pointer checked", "own storage",
        "another argument", "swallowed", "descriptor", "descriptor too long", "made descriptor",
        "made descriptor too long", "tuple", "tuple past the end", "compare and swap",
        "compare and swap past the end", "block pointer's store", "block pointer's store checked",
        "amid an element", "seven sizes", "masked by a scalar too", *GRIDS,
    ):  # fmt: skip
        with contextlib.suppress(triton.runtime.errors.InterpreterError):
            run(name)
        seen[name] = bounds.WATCH.log.fault() or ""
    for way in WAYS:
        bounds.WATCH.begin_call({})
        with contextlib.suppress(triton.runtime.errors.InterpreterError):
            run_through(way)
        seen[f"through {way}"] = bounds.WATCH.log.fault() or ""
    for way in (*BESIDE, *WRAPPED):
        bounds.WATCH.begin_call({})
        with contextlib.suppress(triton.runtime.errors.InterpreterError):
            store_outside(way)
        seen[f"store by {way}"] = bounds.WATCH.log.fault() or ""
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
