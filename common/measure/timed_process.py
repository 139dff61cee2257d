"""The harness's side of a process whose calls are timed: its inputs, samples, runs and results.

This module sends all requests about timed calls; `sandbox/clock.py` answers them.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

from common import wire
from common.arena import Arena, content, elements_of
from common.draws import below, entropy
from common.grading import oracle
from common.grading.execution import call_of
from common.grading.guarded_memory import reserve
from common.grading.problem import Drawn, Problem, call_tensors
from common.grading.tolerance import check_values
from common.grading.worker import Worker
from common.ops._draw import draw
from common.spec import ByClock, Case, Direction, Op
from common.timed_requests import BeginTiming, Limits, RunCalls, TakeSamples
from common.verdicts import Failure
from common.wire import Arguments, TensorSlot

KEPT, SMALL = 4, 1 << 20
"""The number of rounds of each kind from which the results of one call are kept, if these results
have at most SMALL bytes; otherwise 1. A solution that computes only one call in sixteen passes a
single comparison with a probability of 1/16."""
SUSTAINED, TRIAL = 0.5, 0.03
"""Seconds of a sustained run, and of the trial run before it."""
Samples = dict[str, list[float]]
"""Samples in microseconds by timed callable."""
Sampler = Callable[[int], Samples]
"""Takes the given number of samples of one or more timed callables."""
Results = tuple[int, dict[str, torch.Tensor]]
"""The shift of a timed call's inputs, and the harness's copies of the call's results by name."""


# --- the calls ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StagedCalls:
    """Calls of one shape whose inputs are in the memory shared with a process.

    All calls have the same inputs at first; the process rotates the elements of each call's by
    another distance.
    """

    drawn: Drawn
    """The harness's own copy of the inputs."""
    arena: Arena
    calls: list[Arguments]
    results: dict[str, TensorSlot]
    """The slots for the results of one call at a time, by name."""

    def inputs(self, shift: int) -> Drawn:
        """Return the inputs of a call after a shift, in other memory."""
        arguments, upstream = self.drawn
        inputs = {**arguments, **upstream}
        for name, unit in self.calls[0].changing.items():
            tensor = inputs[name]
            rotated = elements_of(tensor).roll(-shift * unit).view(tensor.dtype)
            strides, offset = tensor.stride(), tensor.storage_offset()
            inputs[name] = rotated.as_strided(tensor.shape, strides, offset)
        return inputs, {name: inputs.pop(name) for name in upstream}

    def check(self, call: int, shift: int) -> None:
        """Raise MUTATED_INPUT if an input of a call is not the drawn one after a shift."""
        for name, tensor in call_tensors(*self.inputs(shift)).items():
            elements = self.arena.elements(self.calls[call].slots[name])
            if not torch.equal(elements, elements_of(tensor)):
                raise Failure("MUTATED_INPUT", f"{name} changed in a timed call")


def stage_calls(
    op: Op[Any],
    case: Case,
    device: str,
    worker: Worker,
    count: int = 1,
    results: Mapping[str, torch.Tensor] | None = None,
) -> StagedCalls:
    """Draw and stage the inputs of `count` calls, and memory for the results of one call.

    The inputs change between the calls only if there are `results`, meta tensors by name.
    """
    drawn = draw(op, case, entropy(), device)
    tensors = call_tensors(*drawn)
    arena, slots = reserve(worker, [(tensors, results or {}), *[(tensors, {})] * (count - 1)])
    for call in slots:
        for name, tensor in tensors.items():
            arena.content(call.inputs[name]).copy_(content(tensor))
    calls = [call_of(op, drawn[0], call.inputs) for call in slots]
    return StagedCalls(drawn, arena, calls, slots[0].results)


class TimedProcess:
    """The process of one solution, ready to time its calls on one case and direction."""

    def __init__(
        self,
        worker: Worker,
        staged: StagedCalls,
        direction: Direction,
        limits: Limits | None = None,
    ) -> None:
        """Make the process warm up the staged calls, and the limits to time besides them.

        Raises:
            Failure: The solution failed during the warm-up.
        """
        self.worker, self.staged, self._backward = worker, staged, direction == "backward"
        self.kept: dict[str, list[Results]] = {}
        """The results of a few random calls so far, by kind of call."""
        self._rounds_seen: dict[str, int] = {}
        request = BeginTiming(
            calls=staged.calls, results=[*staged.results.values()], limits=limits,
            backward=self._backward,
        )  # fmt: skip
        ask(worker, request)

    @property
    def inputs(self) -> int:
        """Return the number of inputs that the calls of a round use in turns."""
        return len(self.staged.calls)

    def sampler(self, name: str, clock: ByClock, burst: int = 1) -> Sampler:
        """Return a function that takes samples of one timed callable, checked by their results."""

        def sample(rounds: int) -> Samples:
            report = self.sample([name], clock, rounds, burst)
            self._check(name, report)
            return report.samples

        return sample

    def sample(
        self, names: Sequence[str], clock: ByClock, rounds: int, burst: int = 1, probes: int = 0
    ) -> Report:
        """Return samples of timed callables, one after the other; see `TakeSamples`."""
        request = TakeSamples(
            names=[*names], clock=clock, rounds=rounds, burst=burst, probes=probes,
            backward=self._backward,
        )  # fmt: skip
        return ask(self.worker, request)

    def ready(self, name: str) -> bool:
        """Prepare a timed callable, with all earlier work done; return whether it can be timed.

        A capture of `graph` may fail.
        """
        return ask(self.worker, RunCalls(name=name, backward=self._backward)).ready

    def run(
        self, name: str, rounds: int, renew: bool = False, call: bool = True, wait: bool = True,
        same: bool = False,
    ) -> float:  # fmt: skip
        """Return the seconds of a long run by the harness's clock; see `RunCalls`."""
        self.ready(name)
        request = RunCalls(
            name=name, rounds=rounds, renew=renew, call=call, wait=wait, same=same,
            backward=self._backward,
        )  # fmt: skip
        start = time.perf_counter()
        report = ask(self.worker, request)
        elapsed = time.perf_counter() - start
        if call and wait:
            self._check("long run", report)
        return elapsed

    def sustained(self, name: str, same: bool = False) -> float:
        """Return the microseconds per call of a long run without pauses between the calls.

        One round and then a trial run determine the number of calls.
        """
        microseconds = 1.0
        for seconds in (0, TRIAL, SUSTAINED):
            rounds = max(round(1e6 * seconds / microseconds / self.inputs), 1)
            microseconds = 1e6 * self.run(name, rounds, same=same) / (rounds * self.inputs)
        return round(microseconds, 2)

    def _check(self, kind: str, report: Report) -> None:
        """Compare the inputs of half of the calls with the drawn ones, perhaps keep the results.

        Every round of a kind is kept with equal probability. The inputs of eager and of a peer's
        prepared call never change, and their results are not kept.
        """
        staged, kept = self.staged, report.kept
        if kept is None and (self.worker.solution.peer or not staged.results):
            return
        if kept is None or kept.call >= self.inputs or len(report.shifts) != self.inputs:
            raise Failure("TAMPERED", "it names no call whose results it kept")
        first, half = below(self.inputs), max(self.inputs // 2, 1)
        for call in range(first, first + half):  # the last burst used one of any half
            staged.check(call % self.inputs, report.shifts[call % self.inputs])
        rounds = self._rounds_seen[kind] = self._rounds_seen.get(kind, 0) + 1
        most = KEPT if sum(slot.nbytes for slot in staged.results.values()) <= SMALL else 1
        place = rounds - 1 if rounds <= most else below(rounds)
        if place < most:
            results = {name: staged.arena.tensor(slot).clone()
                       for name, slot in staged.results.items()}  # fmt: skip
            self.kept.setdefault(kind, [])[place : place + 1] = [(kept.shift, results)]


# --- the results ----------------------------------------------------------------------------------


def wrong_replay(problem: Problem, timed: TimedProcess) -> str | None:
    """Check the kept results of timed calls; describe the first wrong result of a graph's replays.

    A wrong replay is no failure of the solution: the graph may read a tensor that the solution
    computed from the inputs at the capture, such as a table, and the inputs have changed since.

    Raises:
        Failure: A timed call is wrong, or the solution wrote an extra reply.
    """
    timed.ready("solution")  # an extra reply would show here
    timed.worker.release()  # the oracle needs the memory
    wrong, replays = functools.partial(_wrong, problem, timed.staged), timed.kept.pop("graph", [])
    for reason in filter(None, map(wrong, itertools.chain(*timed.kept.values()))):
        raise Failure("INCORRECT_NUMERICAL", reason)
    return next(filter(None, map(wrong, replays)), None)


def _wrong(problem: Problem, staged: StagedCalls, kept: Results) -> str | None:
    """Describe the first wrong value of a timed call, if any."""
    shift, results = kept
    truth = oracle.truth(problem.op, *staged.inputs(shift), len(results) > len(problem.upstream))
    for name, result in results.items():
        if truth[name].numel():
            wrong, _ = check_values(
                result, truth[name], problem.budgets[name], problem.slack, problem.device
            )
            if wrong:
                return f"{name} of a timed call at {list(wrong.index)}: {wrong.text}"
    return None


# --- requests and their replies, which are not trusted --------------------------------------------

Times = list[Annotated[float, Meta(gt=0, le=sys.float_info.max)]]
"""Samples in microseconds."""
Shift = Annotated[int, Meta(ge=0, lt=1 << 40)]


class Kept(msgspec.Struct):
    """The call whose results lie in the slots, and how far its inputs were rotated."""

    call: Annotated[int, Meta(ge=0)]
    shift: Shift


class Report(msgspec.Struct):
    """The reply to a request; each request has some of the fields, as `wire` says."""

    ready: bool = True
    samples: dict[str, Times] = {}
    probes: list[Times] = []
    kept: Kept | None = None
    shifts: list[Shift] = []
    """How far each call's inputs are rotated now."""


def ask(worker: Worker, request: wire.Request) -> Report:
    """Return the reply of a process to a request.

    Raises:
        Failure: The process failed, or, as TAMPERED, its reply has another form or other samples.
    """
    reply = worker.ask(request)
    if reply.get("verdict"):
        raise Failure.from_reply(reply)
    try:
        report = msgspec.convert(reply, Report)
    except msgspec.ValidationError as error:
        raise Failure("TAMPERED", f"its report is invalid: {error}") from None
    if isinstance(request, TakeSamples):
        sizes = {name: len(samples) for name, samples in report.samples.items()}
        probes = [request.probes] * (len(request.names) + 1) if request.probes else []
        wanted = dict.fromkeys(request.names, request.rounds), probes
        if (sizes, [*map(len, report.probes)]) != wanted:
            raise Failure("TAMPERED", "its report has other samples than were asked for")
    return report
