"""Search a folder's declared configurations for the fastest, for each shape of the board's calls.

A solution declares its configurations (`TUNED`, see docs/tuning.md); `points.py` stores the trials.
Each trial times the whole call in the solution's process, so that a configuration that does not
compile, crashes or hangs only adds a failed trial. The fastest has to pass the grader.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from common import wire
from common.draws import Draws, entropy
from common.errors import UserError, out_of_memory
from common.grading.fork_server import ForkServer
from common.grading.grade import grade_case
from common.grading.memory import DeviceMemory, Footprint
from common.grading.problem import make_problem
from common.grading.sweep import Sweep
from common.grading.tiers import tier_cases
from common.grading.worker import Worker
from common.measure import machine
from common.measure.sampling import sample_in_rounds
from common.measure.timed_process import Failed, StagedCalls, TimedProcess, stage_calls
from common.measure.timing import PRECISION
from common.solutions import Solution, discover
from common.spec import DIRECTIONS, Case, Direction, Op
from common.tuning.points import Config, Shape, Trial, Trials, TuningTask, fastest
from common.verdicts import BEFORE_LAUNCH, FINE
from common.wire import Reply

INPUTS = 2
"""The number of inputs that the timed calls use in turns."""
SECONDS = 0.1
"""Seconds for the samples of one configuration, exceeded only to reach the minimum number."""
Choices = list[list[Any]]
"""Lists of kernel, tokens, widths, dtype and configuration, as in requests to a process."""
Kernels = dict[str, list[Config]]
"""The distinct configurations by kernel name: the default, then the others in declared order."""


@dataclass(frozen=True)
class CaseStarted:
    """The search of case `number` of `total` starts."""

    solution: Solution
    case: Case
    number: int
    total: int


@dataclass(frozen=True)
class ConfigTimed:
    """`done` of a task's `total` configurations have been timed, in this search or earlier."""

    task: TuningTask
    done: int
    total: int


@dataclass(frozen=True)
class Found:
    """The result for one shape: the trials, with the default's first, and the winner."""

    task: TuningTask
    trials: list[Trial]
    winner: Trial | None

    def lines(self) -> Iterator[str]:
        """Yield lines with the default's time, the winner's time, and the failures."""
        default, failed = self.trials[0], [t for t in self.trials if t.microseconds is None]
        yield f"{self.task.solution} {self.task.shape} ({self.task.direction})"
        default_result = default.verdict if default in failed else f"{default.microseconds:.2f} us"
        if not (best := self.winner):
            yield f"    default {default_result}; no configuration passed, so that none was taken"
        elif best is default:
            yield f"    default {default_result}, and nothing is faster by more than a hundredth"
        else:
            config = json.dumps(best.config)
            yield f"    default {default_result}, best {best.microseconds:.2f} us: {config}"
        yield f"    {len(self.trials) - len(failed)} measured, {len(failed)} skipped"
        for verdict, count in Counter(trial.verdict for trial in failed).items():
            reason = next(trial.reason for trial in failed if trial.verdict == verdict)
            yield f"    skipped {count}: {verdict}: {reason}"


Event = str | CaseStarted | ConfigTimed | Found
"""An event of the search; a string is a line for the user."""


def time_forced(
    worker: Worker, staged: StagedCalls, direction: Direction, choices: Choices
) -> Reply:
    """Return the GPU times of the calls with forced configurations, or a verdict."""
    try:
        timed = TimedProcess(worker, staged, direction, choices=choices)
        return sample_in_rounds(
            {"gpu": timed.sampler("solution", "gpu")}, SECONDS, PRECISION["gpu"]
        )
    except Failed as failed:
        return failed.reply


def tune(
    chosen: Sequence[Solution],
    device: str,
    *,
    deadline: float | None = None,
    quiet: bool = True,
    server: ForkServer | None = None,
    memory: int | None = None,
) -> Generator[Event]:
    """Search the configurations that the solutions of one folder declare, and yield the events.

    Each trial is on disk before the next event, and the file that the solution reads is written
    after each shape, so that an interruption loses nothing. Close the generator if you do not
    exhaust it.

    Args:
        chosen: Solutions of one folder; a solution without TUNED yields a line that states this.
        device: `cuda`; tests search on `cpu`.
        deadline: The time limit in seconds for one reply of a solution's process.
        quiet: Hide the solutions' output.
        server: A fork server to share.
        memory: The bytes of GPU memory that the search may use, by default all free memory.

    Raises:
        UserError: A solution cannot be imported or its TUNED is invalid, or the file of trials
            cannot be read or written.
    """
    budget = DeviceMemory.of(device, memory)
    with Sweep(device, quiet, deadline, server=server, memory=budget) as sweep:
        declared = yield from _declared(sweep, chosen)
        if not declared:
            return
        trials = _trials(chosen[0], device)
        try:
            for name in sorted(trials.stale):
                changed = f"{name} or its versions changed since it was tuned"
                yield f"{changed}: the earlier trials are ignored"
            yield from _search(sweep, declared, trials)
            trials.write()
        finally:
            trials.close()


def _declared(
    sweep: Sweep, chosen: Sequence[Solution]
) -> Generator[str, None, dict[Solution, Kernels]]:
    """Return the kernels of each solution that declares kernels.

    Raises:
        UserError: A solution fails, its TUNED is not as docs/tuning.md describes it, or two
            different kernels of the folder have the same name.
    """
    declared: dict[Solution, Kernels] = {}
    folder_kernels: Kernels = {}
    for solution in chosen:
        reply = sweep.worker(solution).ask(wire.Tunable())
        if reply.get("verdict"):
            raise UserError(f"{solution.name}: {reply['verdict']}: {reply['reason']}")
        try:
            kernels = [(str(kernel["name"]), _configs(**kernel)) for kernel in reply["kernels"]]
        except (TypeError, ValueError, KeyError) as error:
            raise UserError(
                f"{solution.name}: TUNED is not as docs/tuning.md describes it: {error}"
            ) from None
        for name, configs in kernels:
            if folder_kernels.setdefault(name, configs) != configs:
                raise UserError(f"{solution.handle} has two kernels named {name!r}: rename one")
        if kernels:
            declared[solution] = dict(kernels)
        else:
            yield f"{solution.name} declares no TUNED: there is nothing to search"
    return declared


def _configs(name: str, default: Config, space: Iterable[Config]) -> list[Config]:
    """Return a kernel's distinct configurations, the default first.

    Raises:
        ValueError: A configuration has other parameter names than the default.
    """
    configs: list[Config] = []
    for config in [default, *space]:
        if not isinstance(config, dict) or config.keys() != default.keys():
            raise ValueError(f"{config} of {name!r} has other parameter names than its default")
        if config not in configs:
            configs.append(config)
    return configs


def _trials(solution: Solution, device: str) -> Trials:
    """Return the trials of the solution's folder on the device."""
    folder = solution.path.parent
    siblings = [other for other in discover(folder.parent) if other.handle == solution.handle]
    sources = {other.name: other.source_digest for other in siblings}
    path = folder / "configs" / f"{machine.results_folder(device)}.jsonl"
    return Trials(path, machine.device_fields(device), sources, machine.versions())


def _search(sweep: Sweep, declared: dict[Solution, Kernels], trials: Trials) -> Iterator[Event]:
    device, budget = sweep.device, sweep.memory_budget.memory.budget
    boards = {op.name: (op, cases) for op, cases in tier_cases(declared, "board", device)}
    todo = [(s, boards[s.op][0], case) for s in declared for case in boards[s.op][1]]
    searches = {
        solution: _Search(sweep.worker(solution), device, kernels, trials, budget)
        for solution, kernels in declared.items()
    }
    for number, (solution, op, case) in enumerate(todo, start=1):
        yield CaseStarted(solution, case, number, len(todo))
        try:
            yield from searches[solution].case(op, case)
        except torch.OutOfMemoryError as error:
            yield f"{solution.name} {case.name} does not fit: {out_of_memory(error)}"


# --- one solution ---------------------------------------------------------------------------------


class _Search:
    """The search of one solution: its kernels, its process, and the shapes already searched."""

    def __init__(
        self, worker: Worker, device: str, kernels: Kernels, trials: Trials, budget: int
    ) -> None:
        self._worker, self._device, self._kernels = worker, device, kernels
        self._trials, self._budget = trials, budget
        self._searched: set[Shape] = set()

    def case(self, op: Op[Any], case: Case) -> Iterator[Event]:
        """Search each shape that the case's call looks up and that is not searched yet."""
        while True:
            directions, failure = self._looked_up_shapes(op, case)
            new_shapes = [shape for shape in directions if shape not in self._searched]
            for shape in new_shapes:
                self._searched.add(shape)
                yield from self._search_shape(op, case, shape, directions[shape])
            # a call that failed with a default may look up more shapes with a better configuration
            if not (failure and new_shapes):
                break
        if failure and failure["verdict"] != "UNSUPPORTED":
            name = self._worker.solution.name
            yield f"{name} {case.name}: {failure['verdict']}: {failure['reason']}"

    def _looked_up_shapes(
        self, op: Op[Any], case: Case
    ) -> tuple[dict[Shape, list[Direction]], Reply | None]:
        """Return the directions of one call by the shapes that it looks up, and its failure."""
        (call,) = stage_calls(op, case, self._device, self._worker, 1).calls
        reply = self._worker.ask(wire.Lookups(call=call, choices=self._choices()))
        self._recover(reply.get("verdict"))
        directions: dict[Shape, list[Direction]] = {}
        for direction in DIRECTIONS:
            for kernel, tokens, widths, dtype in reply.get("asked", {}).get(direction, []):
                if kernel in self._kernels and tokens > 0:
                    shape = Shape(kernel, tuple(widths), dtype, tokens)
                    directions.setdefault(shape, []).append(direction)
        return directions, reply if reply.get("verdict") else None

    def _search_shape(
        self, op: Op[Any], case: Case, shape: Shape, directions: list[Direction]
    ) -> Iterator[Event]:
        """Time the configurations that are not timed yet, and grade the fastest.

        Do nothing if the shape has a winner of another solution of the folder.
        """
        task = TuningTask(self._worker.solution.name, shape, case.name, directions[0])
        previous = self._trials.winners().get(shape)
        if previous and previous.solution != task.solution:
            return
        timed = yield from self._time(op, case, previous.task if previous else task)
        winner = yield from self._winner(op, case, timed, directions)
        self._trials.write()
        yield Found(task, timed, winner)

    def _time(
        self, op: Op[Any], case: Case, task: TuningTask
    ) -> Generator[ConfigTimed, None, list[Trial]]:
        configs = self._kernels[task.shape.kernel]
        staged: StagedCalls | None = None
        timed: list[Trial] = []
        for config in configs:
            yield ConfigTimed(task, len(timed), len(configs))
            trial = self._trials.find("timed", task, config)
            if trial is None:
                staged = staged or stage_calls(op, case, self._device, self._worker, INPUTS)
                trial = self._time_one(staged, task, config)
            timed.append(trial)
        yield ConfigTimed(task, len(timed), len(configs))
        return timed

    def _time_one(self, staged: StagedCalls, task: TuningTask, config: Config) -> Trial:
        choices = self._choices(task.shape, config)
        reply = time_forced(self._worker, staged, task.direction, choices)
        self._recover(reply.get("verdict"))
        if reply.get("verdict"):
            failure = {"verdict": reply["verdict"], "reason": reply["reason"]}
            return self._trials.add("timed", task, config, **failure)
        microseconds = round(float(median(reply["gpu"])), 2)
        return self._trials.add("timed", task, config, microseconds=microseconds)

    def _winner(
        self, op: Op[Any], case: Case, timed: list[Trial], directions: list[Direction]
    ) -> Generator[str, None, Trial | None]:
        """Return the fastest trial that passes the grader in each direction that uses the shape."""
        candidates = list(timed)
        while best := fastest(candidates):
            graded = self._trials.find("graded", best.task, best.config)
            graded = graded or self._grade(op, case, best, directions)
            if graded.verdict == "PASSED":
                return best
            candidates.remove(best)
            yield (
                f"{best.solution} {best.shape}: dropped {best.config}, which is"
                f" {graded.verdict}: {graded.reason}"
            )
        return None

    def _grade(self, op: Op[Any], case: Case, trial: Trial, directions: list[Direction]) -> Trial:
        choices = self._choices(trial.shape, trial.config)
        reply = self._worker.ask(wire.Force(choices=choices))
        if not reply.get("verdict"):
            low_memory = Footprint.by(op, case).low_memory(self._budget)
            problem = make_problem(op, case, Draws(entropy()), self._device, low_memory)
            verdicts = grade_case(problem, self._worker)
            self._recover(*(verdict.verdict for verdict in verdicts.values()))
            failed = (verdicts[d] for d in directions if verdicts[d].verdict != "PASSED")
            first = next(failed, verdicts[directions[0]])
            reply = {"verdict": first.verdict, "reason": first.reason}
        result = {name: reply[name] for name in ("verdict", "reason")}
        return self._trials.add("graded", trial.task, trial.config, **result)

    def _choices(self, shape: Shape | None = None, config: Config | None = None) -> Choices:
        """Return the winner's configuration of each shape, with `config` for `shape` if given."""
        best = {winner.shape: winner.config for winner in self._trials.winners().values()}
        if shape and config is not None:
            best[shape] = config
        return [[s.kernel, s.tokens, list(s.widths), s.dtype, c] for s, c in best.items()]

    def _recover(self, *verdicts: str | None) -> None:
        """Restart the process if a kernel failed, because the CUDA context may be broken."""
        if not {None, *FINE, *BEFORE_LAUNCH}.issuperset(verdicts):
            self._worker.renew()
