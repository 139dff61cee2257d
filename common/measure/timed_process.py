"""The harness's hold on a process whose calls are timed: its inputs, rounds, and long runs.

All requests about timed calls are made here; `sandbox/timed.py` answers them.
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
"""The timed callables that have no gradients."""
KEPT, SMALL = 4, 1 << 20
"""The rounds of each kind of which one call's results are kept, where these have so few bytes; of
larger ones one round. Who computes one call of sixteen passes one comparison of sixteen."""
SUSTAINED, TRIAL = 0.5, 0.03
"""Seconds of a sustained run, and of the run before it if a call takes as long as its samples of
GPU time."""
Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None
"""Bytes, as a record holds them, if they are known."""
Times = list[Annotated[float, Meta(gt=0, le=sys.float_info.max)]]
"""Samples in microseconds."""
Sampler = Callable[[int], list[float]]
"""Takes so many samples, in microseconds."""


class Failed(Failure):
    """A timed process did not answer as it must; holds the verdict and its reason."""


# --- the calls and their results ------------------------------------------------------------------


@dataclass(frozen=True)
class StagedCalls:
    """Calls of one shape whose inputs lie in the memory shared with a process.

    The inputs are there alone. Whoever needs them as they were drawn draws them again.
    """

    draw: Callable[[int], Drawn]
    """Returns the inputs of a seed, the same bits each time."""
    arena: Arena
    seeds: list[int]
    inputs: list[dict[str, TensorSlot]]
    """Those of each call by name, the upstream gradient's too."""
    results: dict[str, TensorSlot]
    """The memory that the results of one call at a time are kept in."""
    calls: list[Arguments]

    def changed(self, shifts: list[int]) -> str | None:
        """Describe the first input that is not what was drawn, moved by its call's shift."""
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
    """Draw and stage so many calls, a seed each, with memory for these results."""

    def drawn(seed: int) -> Drawn:
        return draw(op, case, seed, device)

    def stage(call: Drawn, slots: dict[str, TensorSlot]) -> Arguments:
        for name, tensor in call_tensors(*call).items():
            arena.put(slots[name], tensor)
        return call_of(op, call[0], slots)

    seeds = [entropy() for _ in range(count)]
    first = drawn(seeds[0])
    several = [results or {}, *[{}] * (count - 1)]
    arena, slots = reserve(worker, [call_tensors(*first)] * count, several)
    inputs = [slot.inputs for slot in slots]
    calls = [stage(first, inputs[0])]
    del first  # one call's inputs are alive at a time
    calls += [stage(drawn(seed), each) for seed, each in zip(seeds[1:], inputs[1:], strict=True)]
    return StagedCalls(drawn, arena, seeds, inputs, slots[0].results, calls)


@dataclass(frozen=True)
class KeptResults:
    """The results of one timed call, and the inputs that it had."""

    seed: int
    """That of the call's inputs."""
    changing: dict[str, int]
    """The inputs that were shifted, and the elements of each that move together."""
    shift: int
    results: dict[str, torch.Tensor]
    """By name; the harness's own copies, on the CPU where the GPU's memory is scarce."""


class TimedProcess:
    """One solution on one case and direction, ready to be timed."""

    def __init__(
        self,
        worker: Worker,
        staged: StagedCalls,
        direction: Direction,
        limits: Reply | None = None,
        choices: list[Any] | None = None,
        low_memory: bool = False,
        keep_other: bool = False,
    ) -> None:
        """Have the process warm up.

        Args:
            worker: The worker of the solution, or of eager.
            staged: The calls that it makes in turn.
            direction: `forward`, or `backward` for both.
            limits: See `sandbox.timed.begin_timing`.
            choices: See `sandbox.tunables.force`.
            low_memory: The GPU's memory is scarce: between its rounds the process holds inputs
                alone.
            keep_other: The process stays ready for the other direction too.

        Raises:
            Failed: The solution failed meanwhile.
        """
        self._worker, self._staged, self.low_memory = worker, staged, low_memory
        self.kept: dict[str, list[KeptResults]] = {}
        """By kind of call, the results of a few calls of those so far, drawn at random."""
        self._chances: dict[str, int] = {}
        self._backward = direction == "backward"
        self._at: str | None = None
        """The timed callable that is warm, beside which no work is left."""
        if low_memory and torch.cuda.is_available():
            torch.cuda.empty_cache()  # of what the draws took here
        reply = self._ask(
            wire.BeginTiming(
                calls=staged.calls,
                results=list(staged.results.values()),
                limits=limits,
                choices=choices,
                keep_other=keep_other,
                backward=self._backward,
            )
        )
        reported = reply.get("peak_memory")
        self.peak_memory = _read(reported, Size, "what it reports is no size of memory")
        """The bytes that a call takes beyond inputs and results, as the process says; None on a
        CPU."""
        self.slow = reply.get("slow") is True
        """Whether a call takes so long, as the process says, that launching is nothing beside it:
        its samples are few, and its parts are not timed."""
        self._give_back()

    def sampler(self, name: str, clock: ByClock, burst: int = 1) -> Sampler:
        """Return a function that takes samples of one timed callable; see `sandbox.clock.Clock`."""

        def take(rounds: int) -> list[float]:
            reported, reply = self._take_samples(
                [name], clock=clock, rounds=rounds, burst=burst, look=0
            )
            samples: Times = _read(reported[name], Times, NO_SAMPLES, rounds)
            self._keep(name if name in FORWARD_ALONE else "sample", reply)
            self._at = name
            self._give_back()
            return samples

        return take

    @property
    def inputs(self) -> int:
        """Return the number of inputs that the calls of a round take in turn."""
        return len(self._staged.calls)

    def capture(self) -> bool:
        """Return whether the replay of forward's CUDA graphs can be timed, as `graph`."""
        return self._ask(wire.Capture(backward=self._backward)).get("captured") is True

    def throughput_run(
        self, name: str, rounds: int, renew: bool = False, run: bool = True, wait: bool = True
    ) -> Elapsed:
        """Return a long run's time by the harness's own clocks; see `Clock.throughput_run`."""
        if name != self._at or name != "solution":  # a limit has no memory outside of its rounds
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
        self._at = name if wait else None  # a run that does not wait may leave work
        self._give_back()
        return elapsed

    def sustained(self, name: str, expected: float) -> float:
        """Return the microseconds of a call that runs on and on, with nothing between two calls.

        A short run shows how many calls fill the time: they may wait for the host, which the
        expected microseconds, those of the GPU, do not tell.
        """
        took = expected
        for seconds in (TRIAL, SUSTAINED):
            rounds = max(round(1e6 * seconds / took / self.inputs), 1)
            took = 1e6 * self.throughput_run(name, rounds).wall / (rounds * self.inputs)
        return round(took, 2)

    def settle(self) -> None:
        """Wait until the process has answered all: a reply that it wrote itself leaves another."""
        self._ask(wire.Settle())

    def changed(self) -> str | None:
        """Describe the first input that a call has changed; None if none has.

        Inputs that nobody moves, those of eager and of a peer's prepared call, are not compared.
        """
        if not self.kept:
            return None
        reported = self._ask(wire.Shifts(backward=self._backward)).get("shifts")
        none = "it does not say how far its inputs have moved"
        return self._staged.changed(_read(reported, list[int], none, len(self._staged.calls)))

    def _give_back(self) -> None:
        if self.low_memory:
            self._ask(wire.GiveBack(backward=self._backward))
            self._at = None

    def sample_together(
        self, names: Sequence[str], **how: Any
    ) -> tuple[dict[str, list[float]], Any]:
        """Return samples of several timed callables, asked at once, and those of the probe between.

        Args:
            names: The timed callables, in their order.
            how: See `sandbox.timed.take_samples`.
        """
        samples, reply = self._take_samples(names, **how)
        self._at = names[-1]
        self._give_back()
        return samples, reply["probes"]

    def _take_samples(self, names: Sequence[str], **how: Any) -> tuple[dict[str, Any], Reply]:
        """Return what the process says of each timed callable's samples, and its whole reply."""
        reply = self._ask(wire.TakeSamples(names=list(names), **how, backward=self._backward))
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
        """Copy the kept results out, each round's with the same chance to stay."""
        staged = self._staged
        if reply.get("kept") is None and (self._worker.solution.peer or not staged.results):
            return  # the prepared call of a peer sees no other inputs
        no_call = "it names no call whose results it kept"
        kept: dict[str, int] = _read(reply.get("kept"), dict[str, int], no_call)
        if not ({"call", "shift"} <= kept.keys() and 0 <= kept["call"] < len(staged.calls)):
            raise Failed("TAMPERED", no_call)
        rounds = self._chances[kind] = self._chances.get(kind, 0) + 1
        most = KEPT if sum(slot.nbytes for slot in staged.results.values()) <= SMALL else 1
        place = rounds - 1 if rounds <= most else below(rounds)
        if place >= most:
            return
        index = kept["call"]
        names = [name for name in staged.results if name == OUTPUT or kind not in FORWARD_ALONE]
        results = {name: self._copied(staged.arena.tensor(staged.results[name])) for name in names}
        changing = staged.calls[index].changing
        cache = KeptResults(staged.seeds[index], changing, kept["shift"], results)
        self.kept.setdefault(kind, [])[place : place + 1] = [cache]

    def _copied(self, result: torch.Tensor) -> torch.Tensor:
        return result.to("cpu" if self.low_memory else result.device, copy=True)


# --- one request by itself ------------------------------------------------------------------------


def probe(worker: Worker, clock: ByClock, rounds: int) -> list[float]:
    """Return samples of a process's probe in microseconds.

    Raises:
        Failed: CRASHED, where there are none.
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


# --- what a process says --------------------------------------------------------------------------

NO_SAMPLES = "its report is no list of the samples that were asked for"


def _read(reported: Any, form: Any, otherwise: str, count: int | None = None) -> Any:
    """Return what a process says, in a form that msgspec knows; a list has so many items.

    Raises:
        Failed: TAMPERED, where it is something else: the solution wrote it itself.
    """
    try:
        found = msgspec.convert(reported, form)
    except msgspec.ValidationError:
        raise Failed("TAMPERED", otherwise) from None
    if count is not None and len(found) != count:
        raise Failed("TAMPERED", otherwise)
    return found
