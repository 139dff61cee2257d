"""The harness's side of a process whose calls are timed: its inputs, rounds and long runs.

This module sends all requests about timed calls; `sandbox/timed.py` answers them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import torch
from msgspec import Meta

from common import wire
from common.arena import Arena, elements_of, is_rotated
from common.draws import below, entropy
from common.grading.execution import call_of, reserve
from common.grading.problem import OUTPUT, Drawn, call_tensors
from common.grading.worker import Worker
from common.measure.cores import Elapsed, look
from common.ops._draw import draw
from common.spec import ByClock, Case, Direction, Op
from common.verdicts import Failure
from common.wire import Arguments, Reply, TensorSlot

FORWARD_ALONE = ("no_grad", "graph")
"""The timed callables that compute no gradients."""
KEPT, SMALL = 4, 1 << 20
"""The number of rounds of each kind from which the results of one call are kept, if these results
have at most SMALL bytes; otherwise 1. A solution that computes only one call in sixteen passes a
single comparison with a probability of 1/16."""
SUSTAINED, TRIAL = 0.5, 0.03
"""Seconds of a sustained run, and of the trial run before it if a call takes its expected time."""
Samples = dict[str, list[float]]
"""Samples in microseconds by timed callable."""
Sampler = Callable[[int], Samples]
"""Takes the given number of samples of one or more timed callables."""
Form = TypeVar("Form")


class Failed(Failure):
    """A timed process failed or sent an invalid reply; holds the verdict and its reason."""


# --- the calls and their results ------------------------------------------------------------------


@dataclass(frozen=True)
class StagedCalls:
    """Calls of one shape whose inputs are in the memory shared with a process.

    All calls have the same inputs at first; the process rotates the elements of each call's by
    another distance. The harness holds no copy of the inputs and draws them again if it needs them.
    """

    draw: Callable[[], Drawn]
    """Returns the inputs, always with the same bits."""
    arena: Arena
    calls: list[Arguments]
    originals: dict[str, TensorSlot]
    """The slots of the inputs that never change, by name."""
    results: dict[str, TensorSlot]
    """The slots for the results of one call at a time, by name."""

    def check(self, call: Arguments, shift: int) -> None:
        """Raise Failed, MUTATED_INPUT, if an input of a call is not the rotated original."""
        for name, slot in self.originals.items():
            distance = shift * call.changing.get(name, 0)
            elements = self.arena.elements(call.slots[name])
            if not is_rotated(elements, self.arena.elements(slot), distance):
                raise Failed("MUTATED_INPUT", f"{name} changed in a timed call")

    def check_originals(self, drawn: Drawn) -> None:
        """Raise Failed, MUTATED_INPUT, if an original differs from what was drawn."""
        tensors = call_tensors(*drawn)
        for name, slot in self.originals.items():
            if not is_rotated(self.arena.elements(slot), elements_of(tensors[name]), 0):
                raise Failed("MUTATED_INPUT", f"{name} changed in a timed call")


def stage_calls(
    op: Op[Any],
    case: Case,
    device: str,
    worker: Worker,
    count: int,
    results: Mapping[str, torch.Tensor] | None = None,
) -> StagedCalls:
    """Draw and stage the inputs of `count` calls.

    With `results`, meta tensors by name, also stage the original of the inputs, so that the inputs
    can change, and memory for the results of one call.
    """
    draw_inputs = functools.partial(draw, op, case, entropy(), device)
    arguments, grad_output = draw_inputs()
    tensors, copies = call_tensors(arguments, grad_output), count + bool(results)
    arena, reserved = reserve(worker, [tensors] * copies, [results or {}, *[{}] * (copies - 1)])
    for slots in reserved:
        for name, tensor in tensors.items():
            arena.put(slots.inputs[name], tensor)
    calls = [call_of(op, arguments, slots.inputs) for slots in reserved[:count]]
    originals = reserved[-1].inputs if results else {}
    return StagedCalls(draw_inputs, arena, calls, originals, reserved[0].results)


@dataclass(frozen=True)
class KeptResults:
    """The results of one timed call, and how its inputs differed from the originals."""

    changing: dict[str, int]
    """By name of each changing input, the number of elements that move as a unit."""
    shift: int
    """The number of units by which the inputs were rotated."""
    results: dict[str, torch.Tensor]
    """The harness's copies by name."""


class TimedProcess:
    """The process of one solution, ready to time its calls on one case and direction."""

    def __init__(
        self,
        worker: Worker,
        staged: StagedCalls,
        direction: Direction,
        limits: wire.Limits | None = None,
        keep_other: bool = False,
    ) -> None:
        """Make the process warm up.

        Args:
            worker: The worker of the solution, or of eager.
            staged: The calls that it makes in turns.
            direction: `forward`, or `backward` for forward with backward.
            limits: The limits to time besides the calls.
            keep_other: The process also stays ready for the other direction.

        Raises:
            Failed: The solution failed during the warm-up.
        """
        self._worker, self._staged = worker, staged
        self.kept: dict[str, list[KeptResults]] = {}
        """The results of a few random calls so far, by kind of call."""
        self._rounds_seen: dict[str, int] = {}
        self._backward = direction == "backward"
        begun = _ask(
            worker,
            wire.BeginTiming(
                calls=staged.calls,
                originals=staged.originals,
                results=list(staged.results.values()),
                limits=limits,
                keep_other=keep_other,
                backward=self._backward,
            ),
            Begun,
        )
        self.peak_memory, self.slow = begun.peak_memory, begun.slow

    @property
    def inputs(self) -> int:
        """Return the number of inputs that the calls of a round use in turns."""
        return len(self._staged.calls)

    def sampler(self, name: str, clock: ByClock, burst: int = 1) -> Sampler:
        """Return a function that takes samples of one timed callable, checked by their results."""

        def sample(rounds: int) -> Samples:
            report = self.sample([name], clock, rounds, burst)
            self._check(name if name in FORWARD_ALONE else "sample", report)
            return report.samples

        return sample

    def sample(
        self, names: Sequence[str], clock: ByClock, rounds: int, burst: int = 1, probes: int = 0
    ) -> Report:
        """Return samples of timed callables, one after the other; see `wire.TakeSamples`."""
        return take_samples(
            self._worker,
            wire.TakeSamples(
                names=list(names), clock=clock, rounds=rounds, burst=burst, probes=probes,
                backward=self._backward,
            ),
        )  # fmt: skip

    def ready(self, name: str) -> bool:
        """Prepare a timed callable; return whether it can be timed: a capture of `graph` may fail.

        The process has finished all earlier work, and every request is answered: an extra reply was
        written by the solution.
        """
        return _ask(self._worker, wire.RunCalls(name=name, backward=self._backward), Ready).ready

    def run(
        self, name: str, rounds: int, renew: bool = False, call: bool = True, wait: bool = True
    ) -> Elapsed:
        """Return the time of a long run by the harness's clocks; see `wire.RunCalls`."""
        self.ready(name)
        request = wire.RunCalls(
            name=name, rounds=rounds, renew=renew, call=call, wait=wait, backward=self._backward
        )
        start = look(self._worker.pid)
        report = _ask(self._worker, request, Report)
        elapsed = look(self._worker.pid).since(start)
        if call and wait:
            self._check("long run", report)
        return elapsed

    def sustained(self, name: str, expected: float) -> float:
        """Return the microseconds per call of a long run without pauses between the calls.

        A short trial run comes first and determines the number of calls: `expected`, in
        microseconds, may not include the time in which the GPU waits for the host.
        """
        microseconds = expected
        for seconds in (TRIAL, SUSTAINED):
            rounds = max(round(1e6 * seconds / microseconds / self.inputs), 1)
            microseconds = 1e6 * self.run(name, rounds).wall / (rounds * self.inputs)
        return round(microseconds, 2)

    def _check(self, kind: str, report: Report) -> None:
        """Compare the inputs of a random call with the originals, and perhaps keep the results.

        Every round of a kind is kept with equal probability. The inputs of eager and of a peer's
        prepared call never change, and their results are not kept.

        Raises:
            Failed: MUTATED_INPUT, if an input changed; TAMPERED, if the report names no call.
        """
        staged, kept = self._staged, report.kept
        if kept is None and (self._worker.solution.peer or not staged.results):
            return
        if kept is None or kept.call >= self.inputs or len(report.shifts) != self.inputs:
            raise Failed("TAMPERED", "it names no call whose results it kept")
        call = below(self.inputs)
        staged.check(staged.calls[call], report.shifts[call])
        rounds = self._rounds_seen[kind] = self._rounds_seen.get(kind, 0) + 1
        most = KEPT if sum(slot.nbytes for slot in staged.results.values()) <= SMALL else 1
        place = rounds - 1 if rounds <= most else below(rounds)
        if place < most:
            forward = kind in FORWARD_ALONE
            results = {
                name: staged.arena.tensor(slot).clone()
                for name, slot in staged.results.items()
                if name == OUTPUT or not forward
            }
            copies = KeptResults(staged.calls[kept.call].changing, kept.shift, results)
            self.kept.setdefault(kind, [])[place : place + 1] = [copies]


# --- requests and the checks of replies -----------------------------------------------------------


class Begun(msgspec.Struct):
    """The reply to BeginTiming."""

    peak_memory: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    """The bytes that a call takes beyond inputs and results, as reported; None on a CPU."""
    slow: bool = False
    """Whether, as reported, a call is so long that its launch time is negligible: then samples are
    few, and the parts of a call are not timed."""


class Ready(msgspec.Struct):
    """The reply to Run without rounds."""

    ready: bool = True


class Kept(msgspec.Struct):
    """The call whose results lie in the slots, and how far its inputs were rotated."""

    call: Annotated[int, Meta(ge=0)]
    shift: int


Times = list[Annotated[float, Meta(gt=0, le=sys.float_info.max)]]
"""Samples in microseconds."""


class Report(msgspec.Struct):
    """The reply to Samples and to Run."""

    samples: dict[str, Times] = {}
    probes: list[Times] = []
    kept: Kept | None = None
    shifts: list[int] = []
    """How far each call's inputs are rotated now."""


def take_samples(worker: Worker, request: wire.TakeSamples) -> Report:
    """Return the samples that a process reports.

    Raises:
        Failed: The process failed, or, as TAMPERED, its report has other samples.
    """
    report = _ask(worker, request, Report)
    sizes = [len(samples) for samples in report.samples.values()]
    probes = [request.probes] * (len(request.names) + 1) if request.probes else []
    if (
        list(report.samples) != request.names
        or sizes != [request.rounds] * len(request.names)
        or [len(samples) for samples in report.probes] != probes
    ):
        raise Failed("TAMPERED", "its report has other samples than were asked for")
    return report


def trace_case(op: Op[Any], case: Case, device: str, worker: Worker, direction: Direction) -> Reply:
    """Return `{"trace": ...}`, a Chrome trace of a few calls, or a verdict with its reason."""
    (call,) = stage_calls(op, case, device, worker, 1).calls
    return worker.ask(wire.Trace(call=call, backward=direction == "backward"))


def _ask(worker: Worker, request: wire.Request, form: type[Form]) -> Form:
    """Return a reply in the form of a struct.

    Raises:
        Failed: The process failed, or, as TAMPERED, wrote a reply of another form.
    """
    reply = worker.ask(request)
    if reply.get("verdict"):
        raise Failed.from_reply(reply)
    try:
        return msgspec.convert(reply, form)
    except msgspec.ValidationError as error:
        raise Failed("TAMPERED", f"its report is invalid: {error}") from None
