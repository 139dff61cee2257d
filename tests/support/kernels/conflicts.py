"""Launches of two programs that conflict, and some that do not; each returns what is found."""

import re
from functools import partial

import torch
import triton
import triton.language as tl

from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.explanation import Conflicts

N = 4


@triton.jit
def write(out, stride, step):
    program = tl.program_id(0)
    tl.store(out + program * stride, (program * step + 1).to(tl.float32))


@triton.jit
def by_kind(x, out, KIND: tl.constexpr):
    program = tl.program_id(0)
    if KIND == "reads alone":
        tl.store(out + program, tl.load(x))
    elif KIND == "each its own":
        tl.store(x + program, tl.load(x + program) + 1)
        tl.store(x + program, tl.load(x + program) + 2)
    elif KIND == "atomic sum":
        tl.atomic_add(out, 1.5)
    elif KIND == "beside a ticket":
        tl.atomic_add(out, 1.0)
        tl.store(out + 1, program.to(tl.float32))
    elif KIND == "both read":
        value = tl.load(x)
        if program == 1:
            tl.store(x, value + 1)
    elif program == 0:
        if KIND == "two lines write":
            tl.store(out + 3, 1.0)
        elif KIND == "reads before a write":
            tl.store(out, tl.load(x + 4))
        elif KIND == "reads after a write":
            tl.store(out, 1.0)
    else:
        if KIND == "two lines write":
            tl.store(out + 3, 2.0)
        elif KIND == "reads before a write":
            tl.store(x + 4, 9.0)
        elif KIND == "reads after a write":
            tl.store(x + 1, tl.load(out))


def writes(*launches):
    return lambda x, out: [write[(size,)](out, stride, step) for size, stride, step in launches]


def kind(name):
    return lambda x, out: by_kind[(2,)](x, out, name)


def found(launch):
    bounds.WATCH.begin_call({})
    bounds.WATCH.conflicts = conflicts = Conflicts()
    launch(torch.randn(2 * N), torch.zeros(2 * N))
    return conflicts.conflict.text


LINE = r", line \d+ of conflicts.py: tl\..*"
OF_TWO_LINES = {
    "two lines write": "program (0,) writes out + 3",
    "reads before a write": "program (0,) reads x + 4",
    "reads after a write": "program (0,) writes out + 0",
    "both read": "program (0,) reads x + 0",
}
OF_ONE = {
    "two write": (writes((2, 0, 1)), "programs (0,) and (1,) both write out + 0"),
    "atomic sum": (kind("atomic sum"), "programs (0,) and (1,) both update out + 0"),
    "beside a ticket": (kind("beside a ticket"), "programs (0,) and (1,) both write out + 1"),
}
NONE = {
    "apart": writes((2, 1, 1)),
    "the same value": writes((2, 0, 0)),
    "two launches": writes((1, 0, 1), (2, 1, 1), (1, 0, 2), (2, 1, 2)),
    **{name: kind(name) for name in ("each its own", "reads alone")},
}
CASES = {
    **{name: (partial(found, kind(name)), re.escape(text) + LINE + ", which program.*" + LINE)
       for name, text in OF_TWO_LINES.items()},
    **{name: (partial(found, launch), re.escape(text) + LINE)
       for name, (launch, text) in OF_ONE.items()},
    **{name: (partial(found, launch), "") for name, launch in NONE.items()},
}  # fmt: skip
