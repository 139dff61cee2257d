"""The harness's part of the clock: fresh inputs for the solution and for eager, and the request."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any

import torch

from common.arena import Arena, Slot, lay_out, shifted, storage_bytes
from common.grading.calls import call_json, call_tensors, result_slots
from common.grading.problem import OUTPUT, Problem, solve
from common.grading.tolerance import check_values
from common.grading.worker import Worker
from common.measure import device, limits
from common.ops._draw import draw
from common.spec import Case, Direction, Op
from common.wire import GARBAGE, Reply

Drawn = tuple[dict[str, Any], torch.Tensor]
Tensors = Mapping[str, torch.Tensor]
ROTATION = 2
BURST = {"gpu": 1, "host": 30}
"""Calls to a sample of host time, by what ranks the case: few enough to fit the launch queue."""
SECONDS = {"gpu": {"gpu": 1.0, "host": 0.15}, "host": {"gpu": 0.3, "host": 1.5}}
"""By what ranks the case: how long each of the two clocks may take for one direction of it, unless
its medians are known sooner or few samples came by then; host time is the noisier one."""


def time_case(
    problem: Problem, worker: Worker, direction: Direction, patience: float = 1.0
) -> Reply:
    """Samples of forward, or of forward with backward, see `clock.measure`; and the state that the
    device was in. `patience` is how much of SECONDS the clocks may take.

    The results of one timed call, which nobody can foresee, are held against the truth. Eager runs
    on inputs of its own, so that its answer is never the answer to the graded call. Raises Died
    where the worker did not survive it.
    """
    try:
        return _time(problem, worker, direction, patience)
    finally:
        worker.release()


def _time(problem: Problem, worker: Worker, direction: Direction, patience: float) -> Reply:
    op, case = problem.op, problem.case
    where = problem.upstream.device.type
    draws = [draw(op, case, secrets.randbits(48), where) for _ in range(ROTATION + 1)]
    results = [OUTPUT, *op.differentiable] if direction == "backward" else [OUTPUT]
    tensors = [call_tensors(*drawn) for drawn in draws]
    arena, slots = _lay(worker, tensors, result_slots(problem, results))
    calls = _calls(op, draws, slots)
    work = op.timed_work(case, direction)
    with device.Watch(device.reader(_uuid()) if where == "cuda" else None) as watch:
        times = worker.call(
            "time",
            calls=calls[:ROTATION],
            results=[{n: each[f"{n} 0"].json() for n in results} for each in slots[:ROTATION]],
            baseline=calls[ROTATION],
            backward=direction == "backward",
            copy_bytes=work.bytes,
            products=work.products,
            dtype=case.dtype,
            seconds={name: patience * most for name, most in SECONDS[case.ranked_by].items()},
            burst=BURST[case.ranked_by],
        )
    if times.get("verdict"):
        return times
    worker.call("settle")  # a reply that the solution wrote itself has left another unread
    kept = times.pop("kept", None)
    unchecked = worker.solution.peer and not kept  # what a peer prepared does not see new inputs
    if not _well_formed(times) or not (unchecked or _names_a_call(kept)):
        return {"verdict": "TAMPERED", "reason": "what it reports are no samples"}
    if reason := limits.broken(times["gpu"].get("solution", []), work, where):
        return {"verdict": "IMPOSSIBLE_SPEED", "reason": reason}
    if not unchecked:
        found = {name: arena.tensor(slots[kept["call"]][f"{name} 0"]) for name in results}
        if reason := _wrong(problem, draws[kept["call"]], kept["shift"], found):
            return {"verdict": "INCORRECT_NUMERICAL", "reason": reason}
    return times | {"device_state": watch.state}


def trace_case(op: Op[Any], case: Case, device: str, worker: Worker, direction: Direction) -> Reply:
    """`{"trace": ...}`, a Chrome trace of a few calls. Raises Died as `time_case` does."""
    (call,) = lay_calls(op, case, device, worker, 1)
    return worker.call("trace", call=call, backward=direction == "backward")


def lay_calls(op: Op[Any], case: Case, device: str, worker: Worker, count: int) -> list[Reply]:
    """So many calls with inputs of their own, laid in the memory shared with the worker."""
    draws = [draw(op, case, secrets.randbits(48), device) for _ in range(count)]
    _, slots = _lay(worker, [call_tensors(*drawn) for drawn in draws], {})
    return _calls(op, draws, slots)


def _calls(op: Op[Any], draws: list[Drawn], slots: list[dict[str, Slot]]) -> list[Reply]:
    pairs = zip(draws, slots, strict=True)
    return [call_json(op, arguments, own) for (arguments, _), own in pairs]


def _lay(
    worker: Worker, tensors: list[dict[str, torch.Tensor]], rooms: Tensors
) -> tuple[Arena, list[dict[str, Slot]]]:
    """The arena with the tensors of each draw in it, and the slots of each, with rooms for its
    results among them."""
    laid = lay_out(
        (f"{i}/{n}", t) for i, own in enumerate(tensors) for n, t in (own | dict(rooms)).items()
    )
    slots = [
        {name: laid[f"{i}/{name}"] for name in [*own, *rooms]} for i, own in enumerate(tensors)
    ]
    arena = worker.arena(max(slot.end for slot in laid.values()))
    for of_call, own in zip(slots, tensors, strict=True):
        for name, slot in of_call.items():
            if name in own:
                arena.put(slot, own[name])
            else:
                arena.bytes_of(slot).fill_(GARBAGE)
    return arena, slots


def _well_formed(times: Reply) -> bool:
    """Else the solution wrote them itself."""
    try:
        samples = [each for clock in ("gpu", "host") for each in times[clock].values()]
        numbers = all(isinstance(n, float) and 0 <= n < math.inf for each in samples for n in each)
    except (AttributeError, KeyError, TypeError):
        return False
    return set(times) == {"gpu", "host"} and numbers


def _names_a_call(kept: Any) -> bool:
    try:
        return kept["call"] in range(ROTATION) and isinstance(kept["shift"], int)
    except (KeyError, TypeError):
        return False


def _wrong(
    problem: Problem, drawn: Drawn, shift: int, results: dict[str, torch.Tensor]
) -> str | None:
    """What is wrong with the results of a timed call, whose inputs were shifted so far."""
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
