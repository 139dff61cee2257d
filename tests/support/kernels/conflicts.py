"""Launches whose programs conflict, and some whose do not; each returns what is found."""

import functools

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
def write_on_two_lines(out):
    if tl.program_id(0) == 0:
        tl.store(out + 3, 1.0)
    else:
        tl.store(out + 3, 2.0)


@triton.jit
def write_what_was_read(x, out):
    if tl.program_id(0) == 0:
        tl.store(out, tl.load(x + 4))
    else:
        tl.store(x + 4, 9.0)


@triton.jit
def read_what_is_written(x, out):
    if tl.program_id(0) == 0:
        tl.store(out, 1.0)
    else:
        tl.store(x + 1, tl.load(out))


@triton.jit
def read_in_both(x):
    value = tl.load(x)
    if tl.program_id(0) == 1:
        tl.store(x, value + 1)


@triton.jit
def add(out):
    tl.atomic_add(out, 1.5)


@triton.jit
def take_a_ticket_and_write(out):
    tl.atomic_add(out, 1.0)
    tl.store(out + 1, tl.program_id(0).to(tl.float32))


@triton.jit
def copy(x, out):
    tl.store(out + tl.program_id(0), tl.load(x))


@triton.jit
def add_in_place(x):
    place = x + tl.program_id(0)
    tl.store(place, tl.load(place) + 1)
    tl.store(place, tl.load(place) + 2)


def twice(x, out):
    for step in (1, 2):
        write[(1,)](out, 0, step)
        write[(2,)](out, 1, step)


LAUNCHES = {
    "two write": lambda x, out: write[(2,)](out, 0, 1),
    "two lines write": lambda x, out: write_on_two_lines[(2,)](out),
    "reads before a write": lambda x, out: write_what_was_read[(2,)](x, out),
    "reads after a write": lambda x, out: read_what_is_written[(2,)](x, out),
    "both read": lambda x, out: read_in_both[(2,)](x),
    "atomic sum": lambda x, out: add[(2,)](out),
    "beside a ticket": lambda x, out: take_a_ticket_and_write[(2,)](out),
    "apart": lambda x, out: write[(2,)](out, 1, 1),
    "each its own": lambda x, out: add_in_place[(2,)](x),
    "the same value": lambda x, out: write[(2,)](out, 0, 0),
    "two launches": twice,
    "reads alone": lambda x, out: copy[(2,)](x, out),
}


def found(launch):
    bounds.WATCH.begin_call({})
    bounds.WATCH.observer = conflicts = Conflicts()
    launch(torch.randn(2 * N), torch.zeros(2 * N))
    return conflicts.conflict.text


RUNS = {name: functools.partial(found, launch) for name, launch in LAUNCHES.items()}
