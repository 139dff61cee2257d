"""The harness's side of a process whose calls are timed: its inputs, rounds and long runs.

This module sends all requests about timed calls; `sandbox/timed.py` answers them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

from common import wire
from common.arena import Arena, is_shifted
from common.draws import below, entropy
from common.errors import Kind
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
Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None
"""A number of bytes that fits a record's field, or None if it is unknown."""
Times = list[Annotated[float, Meta(gt=0, le=sys.float_info.max)]]
"""Samples in microseconds."""
Sampler = Callable[[int], list[float]]
"""Takes the given number of samples, in microseconds."""


class Failed(Failure):
    """A timed process failed or sent an invalid reply; holds the verdict and its reason."""


# --- the calls and their results ------------------------------------------------------------------


@dataclass(frozen=True)
class StagedCalls:
    """Calls of one shape whose inputs are in the memory shared with a process.

    The harness holds no copy of the inputs; draw them again from their seeds if you need them.
    """

    draw: Callable[[int], Drawn]
    """Returns the inputs of a seed, always with the same bits."""
    arena: Arena
    seeds: list[int]
    inputs: list[dict[str, TensorSlot]]
    """The slots of each call's inputs and upstream gradient, by name."""
    results: dict[str, TensorSlot]
    """The slots for the results of one call at a time, by name."""
    calls: list[Arguments]

    def changed(self, shifts: list[int]) -> str | None:
        """Describe the first input that differs from the drawn one after its call's shift."""
        for seed, slots, call, shift in zip(
            self.seeds, self.inputs, self.calls, shifts, strict=True
        ):
            for name, tensor in call_tensors(*self.draw(seed)).items():
                distance = shift * call.changing.get(name, 0)
                if not is_shifted(self.arena.bytes_of(slots[name]), tensor, distance):
                    return f"{name} changed in a timed call"
        return None


def stage_calls(
    op: Op[Any],
    case: Case,
    device: str,
    worker: Worker,
    count: int,
    results: Mapping[str, torch.Tensor] | None = None,
) -> StagedCalls:
    """Draw and stage `count` calls with a seed each, and memory for results like `results`."""

    def draw_call(seed: int) -> Drawn:
        return draw(op, case, seed, device)

    def stage(call: Drawn, slots: dict[str, TensorSlot]) -> Arguments:
        for name, tensor in call_tensors(*call).items():
            arena.put(slots[name], tensor)
        return call_of(op, call[0], slots)

    seeds = [entropy() for _ in range(count)]
    first = draw_call(seeds[0])
    results_by_call = [results or {}, *[{}] * (count - 1)]
    arena, slots = reserve(worker, [call_tensors(*first)] * count, results_by_call)
    inputs = [slot.inputs for slot in slots]
    calls = [stage(first, inputs[0])]
    del first  # the inputs of only one call are alive at a time
    calls += [
        stage(draw_call(seed), call_slots)
        for seed, call_slots in zip(seeds[1:], inputs[1:], strict=True)
    ]
    return StagedCalls(draw_call, arena, seeds, inputs, slots[0].results, calls)


@dataclass(frozen=True)
class KeptResults:
    """The results of one timed call, and the values that reproduce its inputs."""

    seed: int
    """The seed of the call's inputs."""
    changing: dict[str, int]
    """By name of each shifted input, the number of elements that move as a unit."""
    shift: int
    """The number of units by which the inputs were shifted."""
    results: dict[str, torch.Tensor]
    """The harness's copies by name, on the CPU if the GPU's memory is scarce."""


class TimedProcess:
    """The process of one solution, ready to time its calls on one case and direction."""

    def __init__(
        self,
        worker: Worker,
        staged: StagedCalls,
        direction: Direction,
        limits: Reply | None = None,
        low_memory: bool = False,
        keep_other: bool = False,
    ) -> None:
        """Make the process warm up.

        Args:
            worker: The worker of the solution, or of eager.
            staged: The calls that it makes in turns.
            direction: `forward`, or `backward` for forward with backward.
            limits: See `sandbox.timed.begin_timing`.
            low_memory: The GPU's memory is scarce: between its rounds the process holds only the
                inputs.
            keep_other: The process also stays ready for the other direction.

        Raises:
            Failed: The solution failed during the warm-up.
        """
        self._worker, self._staged, self.low_memory = worker, staged, low_memory
        self.kept: dict[str, list[KeptResults]] = {}
        """The results of a few random calls so far, by kind of call."""
        self._rounds_seen: dict[str, int] = {}
        self._backward = direction == "backward"
        self._warm: str | None = None
        """The warm timed callable; None at first and if earlier work may still run on the GPU."""
        if low_memory and torch.cuda.is_available():
            torch.cuda.empty_cache()  # the harness drew the inputs on this GPU
        reply = self._ask(
            wire.BeginTiming(
                calls=staged.calls,
                results=list(staged.results.values()),
                limits=limits,
                keep_other=keep_other,
                backward=self._backward,
            )
        )
        reported = reply.get("peak_memory")
        self.peak_memory = _read(reported, Size, "its reported peak memory is no number of bytes")
        """The reported bytes that a call takes beyond inputs and results; None on a CPU."""
        self.slow = reply.get("slow") is True
        """Whether, by the process's report, a call is so long that its launch time is negligible:
        then samples are few, and the parts of a call are not timed."""
        self._give_back()

    def sampler(self, name: str, clock: ByClock, burst: int = 1) -> Sampler:
        """Return a function that takes samples of one timed callable; see `sandbox.clock.Clock`."""

        def take(rounds: int) -> list[float]:
            reported, reply = self._take_samples(
                [name], clock=clock, rounds=rounds, burst=burst, look=0
            )
            samples: Times = _read(reported[name], Times, NO_SAMPLES, rounds)
            self._keep(name if name in FORWARD_ALONE else "sample", reply)
            self._warm = name
            self._give_back()
            return samples

        return take

    @property
    def inputs(self) -> int:
        """Return the number of inputs that the calls of a round use in turns."""
        return len(self._staged.calls)

    def capture(self) -> bool:
        """Capture forward in a CUDA graph; return whether its replay can be timed, as `graph`."""
        return self._ask(wire.Capture(backward=self._backward)).get("captured") is True

    def throughput_run(
        self, name: str, rounds: int, renew: bool = False, run: bool = True, wait: bool = True
    ) -> Elapsed:
        """Return the time of a long run by the harness's clocks; see `Clock.throughput_run`."""
        if name != self._warm or name != "solution":  # a limit frees its memory after each round
            self._ask(wire.GetReady(name=name, backward=self._backward))
        request = wire.ThroughputRun(
            name=name, rounds=rounds, renew=renew, run=run, wait=wait, low_memory=self.low_memory,
            backward=self._backward,
        )  # fmt: skip
        start = look(self._worker.pid)
        reply = self._ask(request)
        elapsed = look(self._worker.pid).since(start)
        if run and wait:
            self._keep("throughput run", reply)
        self._warm = name if wait else None  # without a wait, work may be left
        self._give_back()
        return elapsed

    def sustained(self, name: str, expected: float) -> float:
        """Return the microseconds per call of a long run without pauses between the calls.

        A short trial run comes first and determines the number of calls: `expected`, in
        microseconds, may not include the time in which the GPU waits for the host.
        """
        microseconds = expected
        for seconds in (TRIAL, SUSTAINED):
            rounds = max(round(1e6 * seconds / microseconds / self.inputs), 1)
            microseconds = 1e6 * self.throughput_run(name, rounds).wall / (rounds * self.inputs)
        return round(microseconds, 2)

    def settle(self) -> None:
        """Wait until every request is answered; an extra reply was written by the solution."""
        self._ask(wire.Settle())

    def changed(self) -> str | None:
        """Describe the first input that a call has changed; None if all are unchanged.

        The inputs of eager and of a peer's prepared call are not compared, because they are never
        shifted.
        """
        if not self.kept:
            return None
        reported = self._ask(wire.Shifts(backward=self._backward)).get("shifts")
        no_shifts = "it does not say how far its inputs have moved"
        return self._staged.changed(_read(reported, list[int], no_shifts, len(self._staged.calls)))

    def _give_back(self) -> None:
        if self.low_memory:
            self._ask(wire.GiveBack(backward=self._backward))
            self._warm = None

    def sample_together(
        self, names: Sequence[str], **options: Any
    ) -> tuple[dict[str, list[float]], Any]:
        """Return samples of several timed callables and of the probe between them, in one request.

        Args:
            names: The timed callables, in the order of their samples.
            options: See `sandbox.timed.take_samples`.
        """
        samples, reply = self._take_samples(names, **options)
        self._warm = names[-1]
        self._give_back()
        return samples, reply["probes"]

    def _take_samples(self, names: Sequence[str], **options: Any) -> tuple[dict[str, Any], Reply]:
        """Return the unchecked samples by timed callable, and the process's reply."""
        reply = self._ask(wire.TakeSamples(names=list(names), **options, backward=self._backward))
        samples: dict[str, Any] = _read(reply.get("samples"), dict[str, Any], NO_SAMPLES)
        if list(samples) != list(names):
            raise Failed("TAMPERED", NO_SAMPLES)
        return samples, reply

    def _ask(self, request: wire.Request) -> Reply:
        reply = self._worker.ask(request)
        if reply.get("verdict"):
            raise Failed.from_reply(reply)
        return reply

    def _keep(self, kind: str, reply: Reply) -> None:
        """Copy the results of the last round; every round so far is kept with equal probability."""
        staged = self._staged
        if reply.get("kept") is None and (self._worker.solution.peer or not staged.results):
            return  # the inputs of a peer's prepared call never change
        no_call = "it names no call whose results it kept"
        kept: dict[str, int] = _read(reply.get("kept"), dict[str, int], no_call)
        if not ({"call", "shift"} <= kept.keys() and 0 <= kept["call"] < len(staged.calls)):
            raise Failed("TAMPERED", no_call)
        rounds = self._rounds_seen[kind] = self._rounds_seen.get(kind, 0) + 1
        most = KEPT if sum(slot.nbytes for slot in staged.results.values()) <= SMALL else 1
        place = rounds - 1 if rounds <= most else below(rounds)
        if place >= most:
            return
        index = kept["call"]
        names = [name for name in staged.results if name == OUTPUT or kind not in FORWARD_ALONE]
        results = {name: self._copy(staged.arena.tensor(staged.results[name])) for name in names}
        changing = staged.calls[index].changing
        kept_results = KeptResults(staged.seeds[index], changing, kept["shift"], results)
        self.kept.setdefault(kind, [])[place : place + 1] = [kept_results]

    def _copy(self, result: torch.Tensor) -> torch.Tensor:
        return result.to("cpu" if self.low_memory else result.device, copy=True)


# --- requests outside TimedProcess ----------------------------------------------------------------


def probe(worker: Worker, clock: ByClock, rounds: int) -> list[float]:
    """Return samples of a process's probe in microseconds.

    Raises:
        Failed: CRASHED, if the reply has no valid samples.
    """
    reply = worker.ask(wire.Probe(clock=clock, rounds=rounds))
    try:
        samples: Times = _read(reply.get("samples"), Times, NO_SAMPLES, rounds)
    except Failed:
        reason = str(reply.get("reason", "the probe has no samples"))
        raise Failed("CRASHED", reason, Kind(reply.get("kind", ""))) from None
    return samples


def trace_case(op: Op[Any], case: Case, device: str, worker: Worker, direction: Direction) -> Reply:
    """Return `{"trace": ...}`, a Chrome trace of a few calls, or a verdict with its reason."""
    (call,) = stage_calls(op, case, device, worker, 1).calls
    return worker.ask(wire.Trace(call=call, backward=direction == "backward"))


# --- the checks of replies ------------------------------------------------------------------------

NO_SAMPLES = "its report is no list of the samples that were asked for"


def _read(reported: Any, form: Any, reason: str, count: int | None = None) -> Any:
    """Return a reported value, converted to the type `form`.

    Args:
        reported: The value from a process's reply.
        form: A type that msgspec can check.
        reason: The reason for the verdict if the value is invalid.
        count: The required number of items of a list.

    Raises:
        Failed: TAMPERED, if the value is invalid: the solution wrote the reply itself.
    """
    try:
        value = msgspec.convert(reported, form)
    except msgspec.ValidationError:
        raise Failed("TAMPERED", reason) from None
    if count is not None and len(value) != count:
        raise Failed("TAMPERED", reason)
    return value
