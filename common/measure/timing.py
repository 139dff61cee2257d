"""The harness's part of the clock: fresh inputs for the solution and for eager, and the request."""

from __future__ import annotations

import secrets
from typing import Any

from common.arena import lay_out
from common.exchange import call_json, call_tensors
from common.problem import Problem, draw
from common.spec import DIRECTIONS, Case, Direction, Op
from common.worker import Reply, Worker

ROTATION = 2
BURST = {"gpu": 1, "host": 30}
"""Calls to a sample of host time, by what ranks the case: few enough to fit the launch queue."""
SECONDS = {"gpu": 0.4, "host": 1.2}
"""Each of the two clocks' time for one case and direction, unless few samples came by then; host
time is the noisier one."""


def time_case(problem: Problem, worker: Worker, direction: Direction) -> Reply:
    """Samples of forward, or of forward with backward; see `clock.measure`.

    Eager runs on inputs of its own, so that its answer is never the answer to the graded call.
    Raises Died where the worker did not survive it.
    """
    op, case = problem.op, problem.case
    calls = lay_calls(op, case, problem.upstream.device.type, worker, ROTATION + 1)
    works = [op.work(case, each) for each in DIRECTIONS[: DIRECTIONS.index(direction) + 1]]
    return worker.call(
        "time",
        calls=calls[:ROTATION],
        baseline=calls[ROTATION],
        op=op.name,
        backward=direction == "backward",
        copy_bytes=sum(work.bytes for work in works),
        products=[product for work in works for product in work.products],
        dtype=case.dtype,
        seconds=SECONDS[case.clock],
        burst=BURST[case.clock],
    )


def lay_calls(op: Op[Any], case: Case, device: str, worker: Worker, count: int) -> list[Reply]:
    """So many calls of the case, each on inputs of its own, laid where the worker sees them."""
    draws = [draw(op, case, secrets.randbits(48), device) for _ in range(count)]
    tensors = {
        f"{i} {name}": tensor
        for i, drawn in enumerate(draws)
        for name, tensor in call_tensors(*drawn).items()
    }
    slots = lay_out(tensors.items())
    arena = worker.arena(max(slot.end for slot in slots.values()))
    for name, slot in slots.items():
        arena.put(slot, tensors[name])
    return [
        call_json(op, arguments, {n.removeprefix(f"{i} "): s for n, s in slots.items()
                                  if n.startswith(f"{i} ")})
        for i, (arguments, _) in enumerate(draws)
    ]  # fmt: skip
