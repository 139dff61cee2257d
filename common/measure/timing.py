"""The harness's part of the clock: fresh inputs for the solution and for eager, and the request.

The samples are taken in the solution's process (`sandbox/clock.py`) and not trusted: the results of
one timed call are compared with the oracle, and the median with the device's peak.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

import torch

from common.arena import shifted, storage_bytes
from common.grading.calls import CallSlots, Drawn, call_json, lay, result_slots
from common.grading.problem import OUTPUT, Problem, solve
from common.grading.tolerance import check_values
from common.grading.worker import Worker
from common.measure import device, limits
from common.ops._draw import draw
from common.spec import Case, Direction, Op
from common.wire import Reply

ROTATION = 2
"""Inputs that the timed calls of a solution take in turn."""
BURST = {"gpu": 1, "host": 30}
"""Calls to a sample of host time, by the case's `ranked_by`: few enough for the launch queue."""
SECONDS = {"gpu": {"gpu": 1.0, "host": 0.15}, "host": {"gpu": 0.3, "host": 1.5}}
"""By the case's `ranked_by`, the longest time for GPU and for host samples of one direction.

A clock stops sooner where its medians are known, and later where it has too few samples. Host time
varies more.
"""


def time_case(
    problem: Problem, worker: Worker, direction: Direction, patience: float = 1.0
) -> Reply:
    """Time forward, or forward with backward, in the solution's process, and check the reply.

    One timed call, which the solution cannot foresee, has its results compared with the oracle.
    Eager runs on inputs of its own, so that its results never answer that call.

    Args:
        problem: The problem, already graded.
        worker: The worker of the solution.
        direction: `forward`, or `backward` for both.
        patience: The part of SECONDS that the clocks may take.

    Returns:
        `{"gpu": {"solution": [...], ...}, "host": {...}, "device_state": {...}}` in microseconds,
        or a `verdict` with its `reason`.
    """
    try:
        return _time(problem, worker, direction, patience)
    finally:
        worker.release()


def _time(problem: Problem, worker: Worker, direction: Direction, patience: float) -> Reply:
    op, case = problem.op, problem.case
    where = problem.upstream.device.type
    draws = _draws(op, case, where, ROTATION + 1)
    results = [OUTPUT, *op.differentiable] if direction == "backward" else [OUTPUT]
    arena, slots = lay(worker, draws, result_slots(problem, results))
    with device.Monitor(device.reader(_uuid()) if where == "cuda" else None) as monitor:
        times = _ask_times(problem, worker, direction, patience, draws, slots)
    if times.get("verdict"):
        return times
    # a reply that the solution wrote itself has left the process's own unread
    if (settled := worker.ask("settle")).get("verdict"):
        return settled
    kept = times.pop("kept", None)
    unchecked = worker.solution.peer and not kept  # a peer's prepared call never sees new inputs
    if not _well_formed(times) or not (unchecked or _names_a_call(kept)):
        return {"verdict": "TAMPERED", "reason": "what it reports are no samples"}
    work = op.timed_work(case, direction)
    if reason := limits.broken(times["gpu"].get("solution", []), work, where):
        return {"verdict": "IMPOSSIBLE_SPEED", "reason": reason}
    if not unchecked:
        found = {name: arena.tensor(slots[kept["call"]].results[name, 0]) for name in results}
        if reason := _wrong(problem, draws[kept["call"]], kept["shift"], found):
            return {"verdict": "INCORRECT_NUMERICAL", "reason": reason}
    return times | {"device_state": monitor.state}


def _ask_times(
    problem: Problem,
    worker: Worker,
    direction: Direction,
    patience: float,
    draws: list[Drawn],
    slots: list[CallSlots],
) -> Reply:
    """Request the samples: the last call is eager's, the others are the solution's."""
    op, case = problem.op, problem.case
    *rotated, baseline = _described(op, draws, slots)
    results = [
        {name: slot.json() for (name, _), slot in call.results.items()} for call in slots[:ROTATION]
    ]
    work = op.timed_work(case, direction)
    return worker.ask(
        "time",
        calls=rotated,
        results=results,
        baseline=baseline,
        backward=direction == "backward",
        copy_bytes=work.bytes,
        products=work.products,
        dtype=case.dtype,
        seconds={name: patience * most for name, most in SECONDS[case.ranked_by].items()},
        burst=BURST[case.ranked_by],
    )


def trace_case(op: Op[Any], case: Case, device: str, worker: Worker, direction: Direction) -> Reply:
    """Return `{"trace": ...}`, a Chrome trace of a few calls, or a verdict with its reason."""
    (call,) = lay_calls(op, case, device, worker, 1)
    return worker.ask("trace", call=call, backward=direction == "backward")


def lay_calls(op: Op[Any], case: Case, device: str, worker: Worker, count: int) -> list[Reply]:
    """Lay so many calls, each with inputs of its own, in shared memory; return their JSON."""
    draws = _draws(op, case, device, count)
    _, slots = lay(worker, draws, {})
    return _described(op, draws, slots)


def _draws(op: Op[Any], case: Case, device: str, count: int) -> list[Drawn]:
    return [draw(op, case, secrets.randbits(48), device) for _ in range(count)]


def _described(op: Op[Any], draws: list[Drawn], slots: list[CallSlots]) -> list[Reply]:
    pairs = zip(draws, slots, strict=True)
    return [call_json(op, arguments, call.inputs) for (arguments, _), call in pairs]


# --- checks of the reply --------------------------------------------------------------------------


def _well_formed(times: Reply) -> bool:
    """Return whether these are samples; if not, the solution wrote them itself."""
    try:
        samples = [each for clock in ("gpu", "host") for each in times[clock].values()]
        numbers = all(isinstance(n, float) and 0 < n < math.inf for each in samples for n in each)
        both = [{"solution", "eager"} <= set(times[clock]) for clock in ("gpu", "host")]
    except (AttributeError, KeyError, TypeError):
        return False
    whole = all(samples) and both[1] and (both[0] or not times["gpu"])
    return set(times) == {"gpu", "host"} and numbers and whole


def _names_a_call(kept: Any) -> bool:
    """Return whether this is the timed call with kept results, and the shift of its inputs."""
    try:
        return kept["call"] in range(ROTATION) and isinstance(kept["shift"], int)
    except (KeyError, TypeError):
        return False


def _wrong(
    problem: Problem, drawn: Drawn, shift: int, results: dict[str, torch.Tensor]
) -> str | None:
    """Describe the first wrong value of a timed call on inputs that were shifted so far."""
    op = problem.op
    arguments, upstream = drawn
    for tensor in (*(arguments[name] for name in op.changing), upstream):
        storage_bytes(tensor).copy_(shifted(tensor, shift))
    truth = solve(op, arguments, upstream, double=True)
    for name, result in results.items():
        if truth[name].numel():
            found, _ = check_values(result, truth[name], problem.budgets[name], problem.slack)
            if found:
                return f"{name} of a timed call at {list(found.index)}: {found.text}"
    return None


def _uuid() -> str:
    return str(torch.cuda.get_device_properties().uuid)
