"""The harness's part of the clock: fresh inputs for the solution and for eager, and the request."""

from __future__ import annotations

import math
import secrets
from typing import Any

import torch

from common.arena import Arena, Slot, lay_out, shifted, storage_bytes
from common.exchange import GARBAGE, call_json, call_tensors
from common.measure import limits
from common.problem import OUTPUT, Problem, draw, solve
from common.spec import DIRECTIONS, Direction
from common.tolerance import check_values
from common.worker import Reply, Worker

Drawn = tuple[dict[str, Any], torch.Tensor]
ROTATION = 2
BURST = {"gpu": 1, "host": 30}
"""Calls to a sample of host time, by what ranks the case: few enough to fit the launch queue."""
SECONDS = {"gpu": 0.4, "host": 1.2}
"""Each of the two clocks' time for one case and direction, unless few samples came by then; host
time is the noisier one."""


def time_case(problem: Problem, worker: Worker, direction: Direction) -> Reply:
    """Samples of forward, or of forward with backward; see `clock.measure`.

    The results of one timed call, which nobody can foresee, are held against the truth. Eager runs
    on inputs of its own, so that its answer is never the answer to the graded call. Raises Died
    where the worker did not survive it.
    """
    op, case = problem.op, problem.case
    device = problem.upstream.device.type
    draws = [draw(op, case, secrets.randbits(48), device) for _ in range(ROTATION + 1)]
    results = [OUTPUT, *op.differentiable] if direction == "backward" else [OUTPUT]
    arena, slots = _lay(problem, worker, draws, results)
    calls = [
        call_json(op, arguments, of_call)
        for (arguments, _), of_call in zip(draws, slots, strict=True)
    ]
    counted = DIRECTIONS[: DIRECTIONS.index(direction) + 1]
    work = [op.work(case, each) for each in counted]
    times = worker.call(
        "time",
        calls=calls[:ROTATION],
        results=[{name: slots[i][f"{name} 0"].json() for name in results} for i in range(ROTATION)],
        baseline=calls[ROTATION],
        op=op.name,
        backward=direction == "backward",
        copy_bytes=sum(each.bytes for each in work),
        seconds=SECONDS[case.clock],
        burst=BURST[case.clock],
    )
    if times.get("verdict"):
        return times
    worker.call("settle")  # a reply that the solution wrote itself has left another unread
    kept = times.pop("kept", None)
    if not _well_formed(times, kept):
        return {"verdict": "TAMPERED", "reason": "what it reports are no samples"}
    if reason := limits.broken(times["gpu"].get("solution", []), work, device):
        return {"verdict": "IMPOSSIBLE_SPEED", "reason": reason}
    found = {name: arena.tensor(slots[kept["call"]][f"{name} 0"]) for name in results}
    if reason := _wrong(problem, draws[kept["call"]], kept["shift"], found):
        return {"verdict": "INCORRECT_NUMERICAL", "reason": reason}
    return times


def _lay(
    problem: Problem, worker: Worker, draws: list[Drawn], results: list[str]
) -> tuple[Arena, list[dict[str, Slot]]]:
    """The arena with the tensors of each draw in it, and the slots of each, those of its results
    among them."""
    dtype = getattr(torch, problem.case.dtype)
    tensors = [call_tensors(*drawn) for drawn in draws]
    rooms = {
        f"{name} 0": torch.empty(problem.truth[name].shape, dtype=dtype, device="meta")
        for name in results
    }
    laid = lay_out(
        (f"{i}/{n}", t) for i, own in enumerate(tensors) for n, t in (own | rooms).items()
    )
    slots = [{name: laid[f"{i}/{name}"] for name in own | rooms} for i, own in enumerate(tensors)]
    arena = worker.arena(max(slot.end for slot in laid.values()))
    for of_call, own in zip(slots, tensors, strict=True):
        for name, slot in of_call.items():
            if name in own:
                arena.put(slot, own[name])
            else:
                arena.bytes_of(slot).fill_(GARBAGE)
    return arena, slots


def _well_formed(times: Reply, kept: Any) -> bool:
    """Else the solution wrote them itself."""
    try:
        samples = [each for clock in ("gpu", "host") for each in times[clock].values()]
        numbers = all(isinstance(n, float) and 0 <= n < math.inf for each in samples for n in each)
        whole = kept["call"] in range(ROTATION) and isinstance(kept["shift"], int)
    except (AttributeError, KeyError, TypeError):
        return False
    return set(times) == {"gpu", "host"} and numbers and whole


def _wrong(
    problem: Problem, drawn: Drawn, shift: int, results: dict[str, torch.Tensor]
) -> str | None:
    """What is wrong with the results of a timed call, whose inputs were shifted so far."""
    op = problem.op
    arguments, upstream = drawn
    for tensor in (*(arguments[name] for name in op.differentiable), upstream):
        storage_bytes(tensor).copy_(shifted(tensor, shift))
    truth = solve(op, arguments, upstream, double=True)
    for name, result in results.items():
        if truth[name].numel():
            found, _ = check_values(result, truth[name], problem.budgets[name], problem.slack)
            if found:
                return f"{name} of a timed call at {list(found.index)}: {found.text}"
    return None
