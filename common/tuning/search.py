"""Searches a solution's declared configurations, shape by shape, over the calls of the board.

The solution says what there is to choose (`TUNED`, see CONTRIBUTING.md); `points.py` keeps what was
measured. A configuration is timed as the whole call in the solution's own process, so that one that
does not compile, crashes or hangs costs a line, and the fastest has to pass the grader.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from common.errors import UserError
from common.grading.grade import grade
from common.grading.problem import make_problem
from common.grading.sweep import Sweep, tier_cases
from common.grading.worker import Died, Worker
from common.measure import machine
from common.measure.timing import ROTATION, lay_calls
from common.solutions import Solution, discover
from common.spec import DIRECTIONS, Case, Direction, Op
from common.tuning.points import Config, Shape, Trial, Trials, TuningTask, fastest
from common.wire import Reply

SECONDS = 0.1
"""For the samples of one configuration, unless few came by then."""
HARMLESS = (None, "PASSED", "COMPILE_ERROR", "UNSUPPORTED")
"""Verdicts after which the process can go on; any other may have left its CUDA context broken."""

Choices = list[list[Any]]
"""Kernel, tokens, widths, dtype and configuration, as the solution's process takes them."""
Clock = Callable[[Worker, list[Reply], Direction, Choices], Reply]


def time_forced(
    worker: Worker, calls: list[Reply], direction: Direction, choices: Choices
) -> Reply:
    """The GPU time of the calls, forward or forward with backward, under these configurations."""
    backward = direction == "backward"
    return worker.call(
        "time_forced", calls=calls, choices=choices, backward=backward, seconds=SECONDS
    )


@dataclass(frozen=True)
class Kernel:
    """What a solution declares of one kernel."""

    name: str
    configs: list[Config]
    """The default, then the others in the order of declaration."""


@dataclass(frozen=True)
class Found:
    """What came of one shape: all that was timed, the default first, and the one to take."""

    spot: TuningTask
    points: list[Trial]
    winner: Trial | None

    def lines(self) -> Iterator[str]:
        """For whoever reads what was found."""
        default, failed = self.points[0], [p for p in self.points if p.microseconds is None]
        yield f"{self.spot.solution} {self.spot.shape} ({self.spot.direction})"
        before = default.verdict if default in failed else f"{default.microseconds:.2f} us"
        if not (best := self.winner):
            yield f"    default {before}; no configuration passed, so that none was taken"
        elif best is default:
            yield f"    default {before}, and nothing is faster by more than a hundredth"
        else:
            config = json.dumps(best.config)
            yield f"    default {before}, best {best.microseconds:.2f} us: {config}"
        yield f"    {len(self.points) - len(failed)} measured, {len(failed)} skipped"
        for verdict, count in Counter(point.verdict for point in failed).items():
            reason = next(point.reason for point in failed if point.verdict == verdict)
            yield f"    skipped {count}: {verdict}: {reason}"


@dataclass(frozen=True)
class Watcher:
    """Who is told how far it is: the case under way, and of its shape the configurations done."""

    case: Callable[[Solution, Case, int, int], None] = lambda solution, case, number, of: None
    config: Callable[[TuningTask, int, int], None] = lambda spot, done, of: None
    say: Callable[[str], None] = lambda line: None


def tune(
    chosen: Sequence[Solution],
    device: str,
    watcher: Watcher,
    clock: Clock = time_forced,
    deadline: float | None = None,
    quiet: bool = True,
) -> list[Found] | None:
    """Search what the solutions of one folder declare; None, and a line said of each, where they
    declare nothing.

    Every point is kept as it comes, and the file that the solution reads is written after each
    shape, so that whoever interrupts loses nothing.
    """
    with Sweep(device, quiet, deadline, lives=math.inf) as sweep:
        declared = _declared(sweep, chosen, watcher)
        if not declared:
            return None
        points = _points(chosen[0], device)
        for name in sorted(points.stale):
            watcher.say(f"{name} or its versions changed since it was tuned: that counts no more")
        found: list[Found] = []
        boards = {op.name: (op, cases) for op, cases in tier_cases(list(declared), "board", device)}
        todo = [(s, boards[s.op][0], case) for s in declared for case in boards[s.op][1]]
        searches = {
            solution: _Search(sweep.worker(solution), device, kernels, points, watcher, clock)
            for solution, kernels in declared.items()
        }
        try:
            for number, (solution, op, case) in enumerate(todo, start=1):
                watcher.case(solution, case, number, len(todo))
                found += searches[solution].case(op, case)
            points.write()
        finally:
            points.close()
    return found


def _points(solution: Solution, device: str) -> Trials:
    """Those of the solution's folder."""
    folder = solution.path.parent
    beside = [other for other in discover(folder.parent) if other.handle == solution.handle]
    sources = {other.name: other.source_digest for other in beside}
    path = folder / "configs" / f"{machine.results_folder(device)}.jsonl"
    return Trials(path, machine.device_name(device), sources, machine.versions())


# --- what is declared -----------------------------------------------------------------------------


def _declared(
    sweep: Sweep, chosen: Sequence[Solution], watcher: Watcher
) -> dict[Solution, dict[str, Kernel]]:
    """The kernels of each solution that declares any; a name is one kernel in the whole folder."""
    declared: dict[Solution, dict[str, Kernel]] = {}
    known: dict[str, Kernel] = {}
    for solution in chosen:
        reply = _ask(sweep.worker(solution), "tunable")
        if reply.get("verdict"):
            raise UserError(f"{solution.name}: {reply['verdict']}: {reply['reason']}")
        kernels = _kernels(solution, reply)
        for kernel in kernels:
            if known.setdefault(kernel.name, kernel) != kernel:
                folder = solution.handle
                raise UserError(f"{folder} has two kernels named {kernel.name!r}: rename one")
        if kernels:
            declared[solution] = {kernel.name: kernel for kernel in kernels}
        else:
            watcher.say(f"{solution.name} declares no TUNED: there is nothing to search")
    return declared


def _kernels(solution: Solution, reply: Reply) -> list[Kernel]:
    """A UserError where the solution's TUNED is not what CONTRIBUTING.md asks for."""
    try:
        return [_kernel(**kernel) for kernel in reply["kernels"]]
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(
            f"{solution.name}: TUNED is not as CONTRIBUTING.md has it: {error}"
        ) from None


def _kernel(name: str, default: Config, space: list[Config]) -> Kernel:
    configs: list[Config] = []
    for config in [default, *space]:
        if not isinstance(config, dict) or config.keys() != default.keys():
            raise ValueError(f"{config} of {name!r} has other names than its default")
        if config not in configs:
            configs.append(config)
    return Kernel(str(name), configs)


# --- the search -----------------------------------------------------------------------------------


class _Search:
    """One solution's: what it declares, the process it runs in, and the shapes that are settled."""

    def __init__(
        self,
        worker: Worker,
        device: str,
        kernels: dict[str, Kernel],
        points: Trials,
        watcher: Watcher,
        clock: Clock,
    ) -> None:
        self._worker, self._device, self._kernels = worker, device, kernels
        self._points, self._watcher, self._clock = points, watcher, clock
        self._settled: set[Shape] = set()

    def case(self, op: Op[Any], case: Case) -> list[Found]:
        """Settle each shape that the case's call asks for and that is not settled yet."""
        found: list[Found] = []
        while True:
            asked, failure = self._asked(op, case)
            due = [shape for shape in asked if shape not in self._settled]
            for shape in due:
                self._settled.add(shape)
                found += self._settle(op, case, shape, asked[shape])
            # where a default failed, a better choice lets the call go on and ask for more
            if not (failure and due):
                break
        if failure and failure["verdict"] != "UNSUPPORTED":
            name = self._worker.solution.name
            self._watcher.say(f"{name} {case.name}: {failure['verdict']}: {failure['reason']}")
        return found

    def _asked(self, op: Op[Any], case: Case) -> tuple[dict[Shape, list[Direction]], Reply | None]:
        """The shapes that one call asks for, in which directions; and what it failed with."""
        (call,) = lay_calls(op, case, self._device, self._worker, 1)
        reply = _ask(self._worker, "lookups", call=call, choices=self._choices())
        self._recover(reply.get("verdict"))
        asked: dict[Shape, list[Direction]] = {}
        for direction in DIRECTIONS:
            for kernel, tokens, widths, dtype in reply.get("asked", {}).get(direction, []):
                if kernel in self._kernels and tokens > 0:
                    shape = Shape(kernel, tuple(widths), dtype, tokens)
                    asked.setdefault(shape, []).append(direction)
        return asked, reply if reply.get("verdict") else None

    def _settle(
        self, op: Op[Any], case: Case, shape: Shape, directions: list[Direction]
    ) -> list[Found]:
        """Time what was not timed yet and grade the fastest; nothing where another solution of the
        folder has settled the shape."""
        spot = TuningTask(self._worker.solution.name, shape, case.name, directions[0])
        known = self._points.winners().get(shape)
        if known and known.spot.solution != spot.solution:
            return []
        points = self._time(op, case, known.spot if known else spot)
        winner = self._graded(op, case, points, directions)
        self._points.write()
        return [Found(spot, points, winner)]

    def _time(self, op: Op[Any], case: Case, spot: TuningTask) -> list[Trial]:
        configs = self._kernels[spot.shape.kernel].configs
        timed = [self._points.find("timed", spot, config) for config in configs]
        due = not all(timed)
        calls = lay_calls(op, case, self._device, self._worker, ROTATION) if due else []
        points = []
        for done, (config, point) in enumerate(zip(configs, timed, strict=True)):
            self._watcher.config(spot, done, len(configs))
            points.append(point or self._time_one(calls, spot, config))
        self._watcher.config(spot, len(configs), len(configs))
        return points

    def _time_one(self, calls: list[Reply], spot: TuningTask, config: Config) -> Trial:
        choices = self._choices(spot.shape, config)
        try:
            reply = self._clock(self._worker, calls, spot.direction, choices)
        except Died as death:
            reply = {"verdict": death.verdict, "reason": death.reason}
        self._recover(reply.get("verdict"))
        if reply.get("verdict"):
            found = {"verdict": reply["verdict"], "reason": reply["reason"]}
            return self._points.add("timed", spot, config, **found)
        microseconds = round(median(reply["gpu"]), 2)
        return self._points.add("timed", spot, config, microseconds=microseconds)

    def _graded(
        self, op: Op[Any], case: Case, points: list[Trial], directions: list[Direction]
    ) -> Trial | None:
        """The fastest that passes the grader, in each direction that asks for the shape."""
        left = list(points)
        while best := fastest(left):
            graded = self._points.find("graded", best.spot, best.config)
            graded = graded or self._grade(op, case, best, directions)
            if graded.verdict == "PASSED":
                return best
            left.remove(best)
            self._watcher.say(
                f"{best.spot.solution} {best.spot.shape}: dropped {best.config}, which is"
                f" {graded.verdict}: {graded.reason}"
            )
        return None

    def _grade(self, op: Op[Any], case: Case, point: Trial, directions: list[Direction]) -> Trial:
        choices = self._choices(point.spot.shape, point.config)
        reply = _ask(self._worker, "force", choices=choices)
        if not reply.get("verdict"):
            problem = make_problem(op, case, secrets.randbits(48), self._device)
            verdicts = grade(problem, self._worker)
            self._recover(*(verdict.verdict for verdict in verdicts.values()))
            failed = (verdicts[d] for d in directions if verdicts[d].verdict != "PASSED")
            first = next(failed, verdicts[directions[0]])
            reply = {"verdict": first.verdict, "reason": first.reason}
        return self._points.add("graded", point.spot, point.config, **reply)

    def _choices(self, shape: Shape | None = None, config: Config | None = None) -> Choices:
        """The best that is known of each shape, and for one of them what is tried."""
        best = {known: point.config for known, point in self._points.winners().items()}
        if shape and config is not None:
            best[shape] = config
        return [[s.kernel, s.tokens, list(s.widths), s.dtype, c] for s, c in best.items()]

    def _recover(self, *verdicts: str | None) -> None:
        if any(verdict not in HARMLESS for verdict in verdicts):
            self._worker.renew()


def _ask(worker: Worker, request: str, **arguments: Any) -> Reply:
    """The reply, or what became of the process."""
    try:
        return worker.call(request, **arguments)
    except Died as death:
        return {"verdict": death.verdict, "reason": death.reason}
