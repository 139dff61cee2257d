"""The harness's part of the clock: fresh inputs for the solution and for eager, and the request."""

from __future__ import annotations

import secrets
from typing import Any

import torch

from common.arena import lay_out
from common.exchange import call_json, call_tensors
from common.measure import device
from common.problem import Problem, draw
from common.spec import DIRECTIONS, Case, Direction, Op
from common.worker import Reply, Worker

ROTATION = 2
BURST = {"gpu": 1, "host": 30}
"""Calls to a sample of host time, by what ranks the case: few enough to fit the launch queue."""
SECONDS = {"gpu": {"gpu": 1.0, "host": 0.15}, "host": {"gpu": 0.3, "host": 1.5}}
"""By what ranks the case: how long each of the two clocks may take for one direction of it, unless
its medians are known sooner or few samples came by then; host time is the noisier one."""


def time_case(problem: Problem, worker: Worker, direction: Direction) -> Reply:
    """Samples of forward, or of forward with backward, see `clock.measure`; and the state that the
    device was in.

    Eager runs on inputs of its own, so that its answer is never the answer to the graded call.
    Raises Died where the worker did not survive it.
    """
    op, case = problem.op, problem.case
    calls = lay_calls(op, case, problem.upstream.device.type, worker, ROTATION + 1)
    works = [op.work(case, each) for each in DIRECTIONS[: DIRECTIONS.index(direction) + 1]]
    with device.Watch(device.reader(_uuid())) as watch:
        reply = worker.call(
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
    return reply | {"device_state": watch.state}


def trace_case(op: Op[Any], case: Case, device: str, worker: Worker, direction: Direction) -> Reply:
    """`{"trace": ...}`, a Chrome trace of a few calls. Raises Died as `time_case` does."""
    (call,) = lay_calls(op, case, device, worker, 1)
    return worker.call("trace", call=call, backward=direction == "backward")


def lay_calls(op: Op[Any], case: Case, device: str, worker: Worker, count: int) -> list[Reply]:
    """So many calls with inputs of their own, laid in the memory shared with the worker."""
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


def _uuid() -> str:
    return str(torch.cuda.get_device_properties().uuid)
