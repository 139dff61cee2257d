"""The harness's hold on a process whose calls are timed: its inputs, turns, and long runs."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common.arena import Arena
from common.grading.calls import CallSlots, Drawn, ResultKey, call_json, lay
from common.grading.problem import OUTPUT
from common.grading.worker import Worker
from common.ops._draw import draw
from common.spec import ByClock, Case, Direction, Op
from common.wire import Reply

FORWARD_ALONE = ("no_grad", "graph")
"""The contestants that have no gradients."""
Turn = Callable[[int], list[float]]
"""Takes so many samples, in microseconds."""


class Failed(Exception):
    """A timed process did not answer as it must; holds the verdict and its reason."""

    def __init__(self, verdict: str, reason: str) -> None:
        """Keep the verdict, one of `common.verdicts`, and one line of reason."""
        super().__init__(reason)
        self.verdict, self.reason = verdict, reason


@dataclass(frozen=True)
class Kept:
    """The results of one timed call, and the inputs that it had."""

    drawn: Drawn
    """The call's inputs as they were drawn."""
    changing: dict[str, int]
    """The inputs that were shifted, and the elements of each that move together."""
    shift: int
    results: dict[str, torch.Tensor]
    """By name; the harness's own copies."""


@dataclass(frozen=True)
class LaidCalls:
    """Calls of one shape whose inputs lie in the memory shared with a process."""

    arena: Arena
    drawn: list[Drawn]
    slots: list[CallSlots]
    calls: list[Reply]
    """Their JSON."""


def lay_calls(
    op: Op[Any],
    case: Case,
    device: str,
    worker: Worker,
    count: int,
    results: Mapping[ResultKey, torch.Tensor] | None = None,
) -> LaidCalls:
    """Draw so many calls, each from a seed of its own, and lay them with room for these results."""
    drawn = [draw(op, case, secrets.randbits(48), device) for _ in range(count)]
    arena, slots = lay(worker, drawn, results or {})
    pairs = zip(drawn, slots, strict=True)
    calls = [call_json(op, arguments, call.inputs) for (arguments, _), call in pairs]
    return LaidCalls(arena, drawn, slots, calls)


class TimedProcess:
    """One solution on one case and direction, ready to be timed."""

    def __init__(
        self,
        worker: Worker,
        laid: LaidCalls,
        direction: Direction,
        limits: Reply | None = None,
        choices: list[Any] | None = None,
        beside: bool = False,
    ) -> None:
        """Have the process warm up.

        Args:
            worker: The worker of the solution, or of eager.
            laid: The calls that it makes in turn.
            direction: `forward`, or `backward` for both.
            limits: See `sandbox.timed.begin_timing`.
            choices: See `sandbox.tunables.force`.
            beside: The process stays ready for the other direction too.

        Raises:
            Failed: The solution failed meanwhile.
        """
        self._worker, self._laid = worker, laid
        self.kept: dict[str, Kept] = {}
        """By kind of call, the results of one call of those so far, drawn at random."""
        self._chances: dict[str, int] = {}
        self._direction = {"backward": direction == "backward"}
        self._left_work = False
        begun = time.perf_counter()
        self._ask(
            "begin_timing",
            calls=laid.calls,
            results=[[slot.json() for slot in call.results.values()] for call in laid.slots],
            limits=limits,
            choices=choices,
            beside=beside,
            **self._direction,
        )
        self.warming_up = time.perf_counter() - begun
        """The seconds of the calls that warmed up, which may have compiled too."""

    def turn(self, name: str, clock: ByClock, burst: int = 1) -> Turn:
        """Return a function that takes samples of one contestant; see `sandbox.clock.Clock`."""

        def take(rounds: int) -> list[float]:
            how = {"clock": clock, "rounds": rounds, "burst": burst}
            reply = self._ask("turn", name=name, **how, **self._direction)
            samples: Any = reply.get("samples")
            if not is_samples(samples, rounds):
                raise Failed("TAMPERED", "what it reports are no samples")
            self._keep(name if name in FORWARD_ALONE else "sample", reply)
            return list(samples)

        return take

    @property
    def inputs(self) -> int:
        """Return the number of inputs that the calls of a round take in turn."""
        return len(self._laid.calls)

    def capture(self) -> bool:
        """Return whether the replay of forward's CUDA graphs can be timed, as `graph`."""
        return self._ask("capture", **self._direction).get("captured") is True

    def seconds(
        self, name: str, rounds: int, renew: bool = False, run: bool = True, wait: bool = True
    ) -> float:
        """Return the seconds of a long run, by the harness's own clock; see `Clock.run_on`."""
        if self._left_work:
            self._ask("settle")
        self._left_work = not wait
        how = {"name": name, "rounds": rounds, "renew": renew, "run": run, "wait": wait}
        start = time.perf_counter()
        reply = self._ask("run_on", **how, **self._direction)
        elapsed = time.perf_counter() - start
        if run and wait:
            self._keep("run on", reply)
        return elapsed

    def turns(self, names: Sequence[str], **how: Any) -> tuple[dict[str, list[float]], Any]:
        """Return samples of several contestants, asked at once, and those of the probe between.

        Args:
            names: The contestants, in their order.
            how: See `sandbox.timed.take_turns`.
        """
        reply = self._ask("turns", names=names, **how, **self._direction)
        samples: Any = reply.get("samples")
        if list(samples) != list(names):
            raise Failed("TAMPERED", "what it reports are no samples")
        return samples, reply["probes"]

    def _ask(self, request: str, **arguments: Any) -> Reply:
        reply = self._worker.ask(request, **arguments)
        if reply.get("verdict"):
            raise Failed(str(reply["verdict"]), str(reply.get("reason", "")))
        return reply

    def _keep(self, kind: str, reply: Reply) -> None:
        """Copy the kept results out, each turn's with the same chance to be the last."""
        kept: Any = reply.get("kept")
        laid = self._laid
        if kept is None and (self._worker.solution.peer or not laid.slots[0].results):
            return  # the prepared call of a peer sees no other inputs
        if not names_a_call(kept, len(laid.calls)):
            raise Failed("TAMPERED", "it names no call whose results it kept")
        self._chances[kind] = self._chances.get(kind, 0) + 1
        if secrets.randbelow(self._chances[kind]):
            return
        index = kept["call"]
        slots = laid.slots[index].results
        names = [name for name, _ in slots if name == OUTPUT or kind not in FORWARD_ALONE]
        results = {name: laid.arena.tensor(slots[name, 0]).clone() for name in names}
        changing = laid.calls[index]["changing"]
        self.kept[kind] = Kept(laid.drawn[index], changing, kept["shift"], results)


def is_samples(samples: Any, count: int) -> bool:
    """Return whether these are so many times; if not, the solution wrote them itself."""
    return (
        isinstance(samples, list)
        and len(samples) == count
        and all(isinstance(n, float) and 0 < n < math.inf for n in samples)
    )


def names_a_call(kept: Any, calls: int) -> bool:
    """Return whether this is a timed call with kept results, and the shift of its inputs."""
    try:
        return kept["call"] in range(calls) and isinstance(kept["shift"], int)
    except (KeyError, TypeError):
        return False
