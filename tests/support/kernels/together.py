"""Launches of many programs, which do at once what they do one by one.

A kernel's Python counts itself: `PYTHON.append(1)` runs in the interpreter alone.
"""

from __future__ import annotations

import contextlib
import traceback
from functools import partial
from unittest import mock

import torch
import triton
import triton.language as tl

from common.sandbox.interpreter import bounds, together

PYTHON: list[int] = []
N, B = 12, 8


@triton.jit
def two_ways(x, out, n, B: tl.constexpr):
    PYTHON.append(1)
    pid = tl.program_id(0)
    lanes = pid * B + tl.arange(0, B)
    row = tl.load(x + lanes, mask=lanes < n)
    if pid % 3 == 1:
        row = -row
    tl.store(out + lanes, row, mask=lanes < n)


@triton.jit
def by_value(x, out, n, B: tl.constexpr):
    """A branch on a loaded value, after a store that must not be made twice."""
    PYTHON.append(1)
    lanes = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out + lanes, 1.0, mask=lanes < n)
    if tl.load(x + tl.program_id(0) * B) > 0:
        tl.atomic_add(out + lanes, 10.0, mask=lanes < n)


@triton.jit
def rows_of_lengths(x, out, n, B: tl.constexpr):
    """A loop whose length differs from program to program."""
    PYTHON.append(1)
    pid = tl.program_id(0)
    total = tl.zeros((B,), tl.float32)
    for step in range(0, pid):
        total += tl.load(x + step + tl.arange(0, B))
    tl.store(out + pid * B + tl.arange(0, B), total)


@triton.jit
def blocks(x, out, n, B: tl.constexpr):
    PYTHON.append(1)
    pid = tl.program_id(0)
    source = tl.make_block_ptr(x, (n,), (1,), (pid * B,), (B,), (0,))
    target = tl.make_block_ptr(out, (n,), (1,), (0,), (B,), (0,))
    first = tl.load(source, boundary_check=(0,), padding_option="zero")
    tl.store(tl.advance(target, (pid * B,)), first + 1, boundary_check=(0,))


@triton.jit
def in_order(x, out, n, B: tl.constexpr):
    """Each program reads what the one before has written."""
    PYTHON.append(1)
    pid = tl.program_id(0)
    tl.store(out + pid + 1, tl.load(out + pid) * 2 + tl.load(x + pid))


@triton.jit
def past_the_end(x, out, n, B: tl.constexpr):
    PYTHON.append(1)
    lanes = tl.program_id(0) * B + tl.arange(0, B)
    row = tl.load(x + lanes + (tl.program_id(0) // 7) * 64)
    tl.store(out + lanes, row)


@triton.jit
def assumed(x, out, n, B: tl.constexpr):
    PYTHON.append(1)
    tl.assume(tl.program_id(0) < 7)
    tl.store(out + tl.program_id(0), 1.0)


@triton.jit
def ticket(x, out, n, B: tl.constexpr):
    """Each program stores at the place of the ticket that it draws."""
    PYTHON.append(1)
    place = tl.atomic_add(out, 1.0).to(tl.int32)
    tl.store(out + 1 + place, tl.load(x + tl.program_id(0)))


@triton.jit
def summed(x, out, n, B: tl.constexpr):
    """All programs add to the same elements, in two steps, whose order rounds."""
    PYTHON.append(1)
    lanes = tl.arange(0, B)
    row = tl.load(x + tl.program_id(0) * B + lanes)
    tl.atomic_add(out + lanes, row)
    tl.atomic_add(out + lanes, row / 3)


@triton.jit
def swallows(x, out, n, B: tl.constexpr):
    """It reads out of bounds and catches whatever is raised."""
    PYTHON.append(1)
    _suppressed(x + n + tl.program_id(0) * B)
    tl.store(out + tl.program_id(0), 1.0)


def _suppressed(pointers):
    with contextlib.suppress(BaseException):
        tl.load(pointers)


@triton.jit
def in_rows(x, out, n, B: tl.constexpr):
    """Blocks of two dimensions, scalars of each program, moves, and two stores."""
    PYTHON.append(1)
    pid = tl.program_id(0)
    scale = tl.load(x + pid)
    rows, columns = tl.arange(0, 2)[:, None], tl.arange(0, B // 2)[None, :]
    block = tl.load(x + pid * B + rows * (B // 2) + columns).to(tl.bfloat16)
    turned = tl.reshape(tl.trans(tl.cos(block.to(tl.float32)) * scale), (B,))
    low, high = tl.split(tl.reshape(tl.maximum(turned, -0.5), (B // 2, 2)))
    half = tl.arange(0, B // 2)
    tl.store(out + pid * B + half, tl.where(low > 0, low, -high))
    tl.store(out + pid * B + B // 2 + half, low * high, mask=half < pid)


@triton.jit
def over_the_next(x, out, n, B: tl.constexpr):
    """Each program writes an element of the next one's, which overwrites it in turn."""
    PYTHON.append(1)
    places = tl.program_id(0) * (B - 1) + tl.arange(0, B)
    tl.store(out + places, tl.load(x + places) + tl.program_id(0))


@triton.jit
def in_halves(x, out, n, B: tl.constexpr):
    """Each program writes a number, and a half of the next one's."""
    PYTHON.append(1)
    place = out + tl.program_id(0)
    tl.store((place + 1).to(tl.pointer_type(tl.int16)), 16000)
    tl.store(place, tl.load(x + tl.program_id(0)))


@triton.jit
def one_far(x, out, n, B: tl.constexpr):
    """The lanes of one program lie in two tensors, before and behind the output."""
    PYTHON.append(1)
    pid = tl.program_id(0)
    lanes = pid * B + tl.arange(0, B)
    away = (pid == 9) & (tl.arange(0, B) == 3)
    tl.store(out + lanes, tl.load(tl.where(away, x[1], x[0]) + lanes))


def launched(kernel, backwards, at_once):
    """Return what a launch writes, its fault and exception; and how often Python ran for all."""
    # in one storage, so that a fault names the same neighbour
    y, _, out, _, x = torch.zeros(5, N * B)
    torch.manual_seed(0)
    x.normal_()
    log = bounds.WATCH.begin_call({"x": x, "y": y, "out": out}, backwards)
    PYTHON.clear()
    ran, failed, play = [False], "", together.play
    recorded = at_once and (lambda *launch: ran.append(play(*launch)) or ran[-1])
    with mock.patch.object(together, "play", recorded or (lambda *launch: False)):
        try:
            source = (x, y) if kernel is one_far else x
            kernel[(N,)](source, out, N * B - 3 * (kernel in (two_ways, blocks)), B=B)
        except Exception as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)]
            failed = f"{error}, in {kernel.fn.__name__ in frames and kernel.fn.__name__}"
    fault = log.fault()
    return (out.tolist(), fault and fault.text, failed), len(PYTHON), ran[-1]


def compared(kernel, backwards):
    """Return how often Python ran, if all ran at once with the same effect, or what differs."""
    one_by_one, *_ = launched(kernel, backwards, at_once=False)
    effect, python, at_once = launched(kernel, backwards, at_once=True)
    if effect != one_by_one or not any(any(part or ()) for part in effect):
        return f"{effect}, one by one {one_by_one}"
    if any(effect[1:]):
        return f"fault {effect[1]} failed {effect[2]}"
    return python if at_once else f"alone {python >= N}"


WANTED = {
    in_rows: 1, blocks: 1, one_far: 1, summed: 1, two_ways: 3, by_value: 3,
    # programs that need one another, or all take another way
    **dict.fromkeys(
        (over_the_next, in_halves, in_order, ticket, rows_of_lengths), "alone True"
    ),
    # in the later program's own frames
    past_the_end: r"fault .*tl.load\(x \+ lanes \+ \(tl.program_id\(0\) // 7\) \* 64\)"
                  ".* failed .*in past_the_end$",
    assumed: "fault None failed .*Assume failed.*in assumed$",
    swallows: r"fault .*reads x \+ ",
}  # fmt: skip
"""How often Python runs for programs that run at once, or what becomes of them."""
CASES = {
    f"{kernel.fn.__name__}{' backwards' * backwards}": (
        partial(compared, kernel, backwards), wanted
    )
    for kernel, wanted in WANTED.items()
    for backwards in (False, True)
}  # fmt: skip
