"""The devices that `bench` and `grade` run on: an engine has one executor per device.

An executor is the harness on one device. With one device, the command's own process is the executor
(`LocalEngine`); `ray_engine` distributes the work over several devices.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch

from common.errors import UserError
from common.grading import sweep
from common.grading.compiling import Compiler
from common.grading.memory import DeviceMemory
from common.grading.sweep import Graded
from common.grading.tiers import no_bfloat16, repeats, tier_cases
from common.measure.machine import device_info, digests_of
from common.measure.rows import Measured, Measurement, record_of
from common.records.lines import Record
from common.records.runs import DeviceInfo
from common.records.writer import Samples
from common.solutions import Solution
from common.spec import DIRECTIONS, Case, Op, Tier
from common.verdicts import Verdict

# --- tasks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options that all tasks of one command share."""

    command: Literal["bench", "grade"]
    device: Literal["cpu", "cuda"]
    solutions: tuple[Solution, ...]
    tier: Tier
    sample: int | None = None
    memory: int | None = None
    """The most bytes that may be used of each GPU; None for all free memory."""
    verbose: bool = False


@dataclass(frozen=True)
class Task:
    """Cases of one op for one device, and the solutions to run on each case."""

    op: str
    due: Mapping[str, tuple[str, ...]]
    """The solutions' names, by case."""
    run: str = ""
    """The id of the run that the rows belong to."""

    def skips(self, solution: Solution, case: Case) -> bool:
        """Return whether the task leaves a solution out of a case."""
        return solution.name not in self.due[case.name]


# --- answers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExecutorReady:
    """Reports that an executor has started: its device, and the cases of each op that fit it."""

    device_info: DeviceInfo
    cases: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    """Messages about cases that are left out."""
    node_id: str = ""
    """Ray's name of the node; "" without Ray."""


@dataclass(frozen=True)
class RowsAnswer:
    """The rows of one solution on both directions of a case, and raw samples of timed rows."""

    rows: tuple[Record, ...]
    samples: tuple[Samples | None, ...]

    @property
    def of(self) -> tuple[str, str]:
        """Return the solution and the case."""
        return self.rows[0].solution, self.rows[0].case


@dataclass(frozen=True)
class VerdictsAnswer:
    """The verdicts of one solution on a case."""

    found: tuple[Verdict, ...]

    @property
    def of(self) -> tuple[str, str]:
        """Return the solution and the case."""
        return self.found[0].solution, self.found[0].case


@dataclass(frozen=True)
class TooLargeAnswer:
    """A case that does not fit the device."""

    op: str
    case: str
    reason: str

    @property
    def of(self) -> tuple[None, str]:
        """Return None and the case, which is too large for every solution."""
        return None, self.case


Answer = RowsAnswer | VerdictsAnswer | TooLargeAnswer
Answers = list[Answer] | str
"""Answers to a case, or a message for the user."""


# --- the harness on one device --------------------------------------------------------------------


class Executor:
    """Runs the sweep of one device.

    Workers, compiled kernels, the calibration and the baseline are kept between tasks.
    """

    def __init__(self, job: Job) -> None:
        """Find the device and the cases that fit it, and start a fork server.

        Raises:
            UserError: The device does not exist, or the tier does not support it.
        """
        if job.device == "cuda" and not torch.cuda.is_available():
            raise UserError("torch finds no GPU: it is built without CUDA, or lacks the driver")
        self._job, self._solutions = job, job.solutions
        self._memory = DeviceMemory.of(job.device, job.memory)
        with contextlib.redirect_stderr(io.StringIO()) as notes:
            by_op = tier_cases(self._solutions, job.tier, job.device, job.sample, job.memory)
            self._ops = {op.name: (op, {case.name: case for case in cases}) for op, cases in by_op}
        self._notes = tuple(notes.getvalue().splitlines())
        if lacking := no_bfloat16(job.device):
            self._notes += (lacking,)
        self.device_info = device_info(job.device, self._solutions, self._memory.budget)
        quiet = not job.verbose
        self._compiler = Compiler(job.device, quiet)
        # a timed case ends before the next begins
        overlap = None if job.command == "bench" else True
        self._sweep = sweep.Sweep(job.device, quiet, overlap=overlap, memory=self._memory)
        self._measurement: Measurement | None = None

    def close(self) -> None:
        """End the workers."""
        with self._compiler:
            self._sweep.__exit__()

    def ready(self) -> ExecutorReady:
        """Return the device and its cases."""
        cases = {name: tuple(cases) for name, (_, cases) in self._ops.items()}
        return ExecutorReady(self.device_info, cases, self._notes)

    def run(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Yield the answers to tasks, one per solution and case."""
        graded_cases: Iterable[Graded | sweep.TooLarge | list[Measured]]
        if self._job.command == "grade":
            again = repeats(self._job.tier, self._job.device)
            graded = (self._sweep.grade(*self._resolve(task), task.skips, again) for task in tasks)
            graded_cases = self._compiler.behind(itertools.chain.from_iterable(graded))
        else:
            graded_cases = itertools.chain.from_iterable(map(self._measure, tasks))
        yield from map(self._answer, graded_cases)

    def crashed(self, task: Task, reason: str) -> Iterator[Answer]:
        """Yield CRASHED for each solution and case of a task, without running any."""
        op, cases, chosen = self._resolve(task)
        for case in cases:
            for solution in chosen:
                if not task.skips(solution, case):
                    yield self._crashed(task, op, case, solution, reason)

    @property
    def memory(self) -> dict[str, int]:
        """The peak GPU memory in bytes so far, by holder."""
        if self._job.device != "cuda":
            return {}
        harness, device = torch.cuda.max_memory_reserved(), self._memory.peak
        return {"budget": self._memory.budget, "harness": harness, "device": device}

    def _resolve(self, task: Task) -> tuple[Op[Any], list[Case], list[Solution]]:
        """Return the op, the cases and the solutions of a task."""
        op, cases = self._ops[task.op]
        named = {name for names in task.due.values() for name in names}
        chosen = [
            solution
            for solution in self._solutions
            if solution.op == task.op and solution.name in named
        ]
        return op, [cases[name] for name in task.due], chosen

    def _measure(self, task: Task) -> Iterator[list[Measured] | sweep.TooLarge]:
        if self._measurement is None:
            self._measurement = Measurement(
                self._sweep, self._digests, task.run, self._job.tier, through=self._compiler.behind
            )
        op, cases, chosen = self._resolve(task)
        return self._measurement.measure(chosen, [(op, cases)], task.skips)

    @functools.cached_property
    def _digests(self) -> dict[Solution, tuple[str, str]]:
        return digests_of(self._solutions)

    def _answer(self, result: Graded | sweep.TooLarge | list[Measured]) -> Answer:
        """Return a result as an answer; rows name the node and the device."""
        if isinstance(result, sweep.TooLarge):
            return TooLargeAnswer(result.op.name, result.case.name, result.reason)
        if isinstance(result, Graded):
            return VerdictsAnswer(tuple(result.verdicts.values()))
        where = {"node": self.device_info.node, "device": self.device_info.uuid}
        rows = tuple(msgspec.structs.replace(measured.row, **where) for measured in result)
        return RowsAnswer(rows, tuple(measured.samples for measured in result))

    def _crashed(
        self, task: Task, op: Op[Any], case: Case, solution: Solution, reason: str
    ) -> Answer:
        if self._job.command == "grade":
            verdict = functools.partial(Verdict, solution.name, op.name, case.name)
            return VerdictsAnswer(
                tuple(verdict(direction, "CRASHED", reason) for direction in case.directions)
            )
        rows = (
            record_of(
                op, case, direction, solution, run=task.run, tier=self._job.tier,
                digests=self._digests[solution], verdict="CRASHED", reason=reason,
            )
            for direction in DIRECTIONS
        )  # fmt: skip
        return RowsAnswer(tuple(rows), (None,) * len(DIRECTIONS))


# --- engines --------------------------------------------------------------------------------------


class Engine:
    """Devices that run tasks; a context manager."""

    def __init__(self, job: Job) -> None:
        """Start nothing yet."""
        self.job = job
        self.kinds: dict[str, list[ExecutorReady]] = defaultdict(list)
        """The started executors, by kind of device."""
        self.memory: dict[str, dict[str, int]] = defaultdict(dict)
        """The peak GPU memory in bytes of any device of a kind, by kind and by holder."""
        self._notes: list[str] = []

    def __enter__(self) -> Engine:
        """Start the executors."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """End the executors."""
        raise NotImplementedError

    @property
    def busy(self) -> tuple[int, int]:
        """The number of busy executors, and the number of all executors that are left."""
        raise NotImplementedError

    def run(self, tasks: Mapping[str, Sequence[Task]]) -> Iterator[tuple[str, Answers]]:
        """Run the tasks of each kind of device; yield each answer once, with the kind.

        Raises:
            UserError: No device is left.
        """
        raise NotImplementedError

    @property
    def notes(self) -> list[str]:
        """Messages about executors and left-out cases, without the prefix `study: `."""
        of_devices = [
            note for devices in self.kinds.values() for ready in devices for note in ready.notes
        ]
        return list(
            dict.fromkeys(note.removeprefix("study: ") for note in [*self._notes, *of_devices])
        )

    def cases(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Return the cases of each op that fit every device of a kind."""
        first, *others = self.kinds[kind]
        cases = {}
        for op, names in first.cases.items():
            shared = set(names).intersection(*(other.cases.get(op, ()) for other in others))
            cases[op] = tuple(name for name in names if name in shared)
        return cases

    def count(self, kind: str) -> int:
        """Return the number of pairs of a solution and a case on a kind of device."""
        known = self.cases(kind)
        return sum(len(known.get(solution.op, ())) for solution in self.job.solutions)

    def tasks(
        self, kind: str, run: str = "", done: Collection[tuple[str, str, str]] = ()
    ) -> list[Task]:
        """Return the tasks for a kind of device, one per op.

        Args:
            kind: The kind of device.
            run: The id of the run that the rows belong to.
            done: Solution, op and case of the results that an earlier run has.
        """
        names: dict[str, list[str]] = defaultdict(list)
        for solution in self.job.solutions:
            names[solution.op].append(solution.name)
        tasks = []
        for op, cases in self.cases(kind).items():
            due = {
                case: tuple(name for name in names[op] if (name, op, case) not in done)
                for case in cases
            }
            tasks.append(Task(op, {case: left for case, left in due.items() if left}, run))
        return [task for task in tasks if task.due]


class LocalEngine(Engine):
    """One executor in this process; without a GPU its threads use all cores."""

    _executor: Executor
    _running = False

    def __enter__(self) -> LocalEngine:
        """Start the executor."""
        self._executor = Executor(self.job)
        ready = self._executor.ready()
        self.kinds[ready.device_info.kind].append(ready)
        return self

    def __exit__(self, *_: object) -> None:
        """End the executor's workers."""
        self._executor.close()

    @property
    def busy(self) -> tuple[int, int]:
        """The number of busy executors, 0 or 1, and the number of all executors, 1."""
        return int(self._running), 1

    def run(self, tasks: Mapping[str, Sequence[Task]]) -> Iterator[tuple[str, Answers]]:
        """Yield each answer as it arrives, with the kind of device."""
        ((kind, kind_tasks),) = tasks.items()
        self._running = True
        for answer in self._executor.run(kind_tasks):
            yield kind, [answer]
        self.memory[kind] = self._executor.memory
        self._running = False
