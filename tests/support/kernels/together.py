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
def kernel(x, out, n, B: tl.constexpr, KIND: tl.constexpr):
    PYTHON.append(1)
    pid, lanes = tl.program_id(0), tl.arange(0, B)
    own = pid * B + lanes
    if KIND == "two ways":
        row = tl.load(x + own, mask=own < n)
        if pid % 3 == 1:
            row = -row
        tl.store(out + own, row, mask=own < n)
    elif KIND == "by value":  # after an update that must not be made twice
        tl.atomic_add(out + own, 1.0, mask=own < n)
        if tl.load(x + pid * B) > 0:
            tl.atomic_add(out + own, 10.0, mask=own < n)
    elif KIND == "rows of lengths":  # a loop whose length differs from program to program
        total = tl.zeros((B,), tl.float32)
        for step in range(0, pid):
            total += tl.load(x + step + lanes)
        tl.store(out + own, total)
    elif KIND == "in turns":  # a loop of one length that begins at each program's own number
        for number in range(pid, 3 * N, N):
            tl.store(out + number, tl.load(x + number) + number // 5)
    elif KIND == "blocks":
        source = tl.make_block_ptr(x, (n,), (1,), (pid * B,), (B,), (0,))
        target = tl.make_block_ptr(out, (n,), (1,), (0,), (B,), (0,))
        first = tl.load(source, boundary_check=(0,), padding_option="zero")
        tl.store(tl.advance(target, (pid * B,)), first + 1, boundary_check=(0,))
    elif KIND == "transposed":
        places = lanes[:, None] + tl.arange(0, 2)[None, :] * 0
        tl.store(out + pid * B + places.T, tl.load(x + pid * B + places).T)
    elif KIND == "in order":  # each program reads what the one before has written
        tl.store(out + pid + 1, tl.load(out + pid) * 2 + tl.load(x + pid))
    elif KIND == "past the end":
        tl.store(out + own, tl.load(x + own + (pid // 7) * 64))
    elif KIND == "assumed":
        tl.assume(pid < 7)
        tl.store(out + pid, 1.0)
    elif KIND == "ticket":  # each program stores at the place of the ticket that it draws
        place = tl.atomic_add(out, 1.0).to(tl.int32)
        tl.store(out + 1 + place, tl.load(x + pid))
    elif KIND == "summed":  # all add to the same elements, in two steps, whose order rounds
        row = tl.load(x + own)
        tl.atomic_add(out + lanes, row)
        tl.atomic_add(out + lanes, row / 3)
    elif KIND == "swallows":  # it reads out of bounds and catches whatever is raised
        _suppressed(x + n + pid * B)
        tl.store(out + pid, 1.0)
    elif KIND == "in rows":  # blocks of two dimensions, scalars of each program, and moves
        rows, columns = tl.arange(0, 2)[:, None], tl.arange(0, B // 2)[None, :]
        block = tl.load(x + pid * B + rows * (B // 2) + columns).to(tl.bfloat16)
        turned = tl.trans(tl.cos(block.to(tl.float32)) * tl.load(x + pid))
        low, high = tl.split(tl.reshape(tl.maximum(tl.reshape(turned, (B,)), -0.5), (B // 2, 2)))
        half = tl.arange(0, B // 2)
        tl.store(out + pid * B + half, tl.where(low > 0, low, -high))
        tl.store(out + pid * B + B // 2 + half, low * high, mask=half < pid)
    elif KIND == "over the next":  # an element of the next program's, which overwrites it in turn
        places = pid * (B - 1) + lanes
        tl.store(out + places, tl.load(x + places) + pid)
    elif KIND == "in halves":  # a number, and a half of the next program's
        tl.store((out + pid + 1).to(tl.pointer_type(tl.int16)), 16000)
        tl.store(out + pid, tl.load(x + pid))
    elif KIND == "one far":  # a program's lanes lie in two tensors, before and behind the output
        away = (pid == 9) & (lanes == 3)
        tl.store(out + own, tl.load(tl.where(away, x[1], x[0]) + own))


def _suppressed(pointers):
    with contextlib.suppress(BaseException):
        tl.load(pointers)


def launched(kind, backwards, at_once):
    """Return what a launch writes, its fault and exception; and how often Python ran for all."""
    # in one storage, so that a fault names the same neighbour
    y, _, out, _, x = torch.zeros(5, N * B)
    torch.manual_seed(0)
    x.normal_()
    bounds.WATCH.begin_call({"x": x, "y": y, "out": out}, backwards)
    PYTHON.clear()
    ran, failed, play = [False], "", together.play
    recorded = at_once and (lambda *launch: ran.append(play(*launch)) or ran[-1])
    with mock.patch.object(together, "play", recorded or (lambda *launch: False)):
        try:
            source = (x, y) if kind == "one far" else x
            kernel[(N,)](source, out, N * B - 3 * (kind in ("two ways", "blocks")), B, kind)
        except Exception as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)]
            failed = f"{error}, in {'kernel' in frames and 'kernel'}"
    fault = next(iter(bounds.WATCH.faults), None)
    return (out.tolist(), fault and fault.text, failed), len(PYTHON), ran[-1]


def compared(kind, backwards):
    """Return how often Python ran, if all ran at once with the same effect, or what differs."""
    one_by_one, *_ = launched(kind, backwards, at_once=False)
    effect, python, at_once = launched(kind, backwards, at_once=True)
    if effect != one_by_one or not any(any(part or ()) for part in effect):
        return f"{effect}, one by one {one_by_one}"
    if any(effect[1:]):
        return f"fault {effect[1]} failed {effect[2]}"
    return python if at_once else f"alone {python >= N}"


WANTED = {
    "in rows": 1, "in turns": 1, "blocks": 1, "transposed": 1, "one far": 1, "summed": 1,
    "two ways": 3, "by value": 3,
    # programs that need one another, or all take another way
    **dict.fromkeys(
        ("over the next", "in halves", "in order", "ticket", "rows of lengths"), "alone True"
    ),
    # in the later program's own frames
    "past the end": r"fault .*tl.load\(x \+ own \+ \(pid // 7\) \* 64\) failed .*in kernel$",
    "assumed": "fault None failed .*Assume failed.*in kernel$",
    "swallows": r"fault .*reads x \+ ",
}  # fmt: skip
"""How often Python runs for programs that run at once, or what becomes of them."""
CASES = {
    kind + " backwards" * backwards: (partial(compared, kind, backwards), wanted)
    for kind, wanted in WANTED.items()
    for backwards in (False, True)
}
