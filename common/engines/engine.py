"""The devices that `bench` and `grade` run on: an engine has an executor for each.

An executor is the harness on one device. On one device the command's own process is the executor
(`LocalEngine`); `ray_engine` spreads the work over several.
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

# --- what is asked --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options that all tasks of one command have in common."""

    command: Literal["bench", "grade"]
    device: Literal["cpu", "cuda"]
    solutions: tuple[Solution, ...]
    tier: Tier
    sample: int | None = None
    memory: int | None = None
    """Bytes of each GPU's memory that may be taken; None for all that is free."""
    verbose: bool = False


@dataclass(frozen=True)
class Task:
    """Cases of one op that one device takes, each with the solutions that are to answer it."""

    op: str
    due: Mapping[str, tuple[str, ...]]
    """The solutions' names, by case."""
    run: str = ""
    """The id of the run that rows are for."""

    def skips(self, solution: Solution, case: Case) -> bool:
        """Return whether a solution is not to answer a case."""
        return solution.name not in self.due[case.name]


# --- what is answered -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ExecutorReady:
    """An executor has started: its device, and the cases of each op that it has room for."""

    device_info: DeviceInfo
    cases: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    """Lines on cases that are left out."""


@dataclass(frozen=True)
class RowsAnswer:
    """Both directions of a case of one solution, with the raw samples of those that were timed."""

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
        """Return the case, which is no solution's."""
        return None, self.case


Answer = RowsAnswer | VerdictsAnswer | TooLargeAnswer
Answers = list[Answer] | str
"""Answers to a case; or a line for the user."""


# --- the harness on one device --------------------------------------------------------------------


class Executor:
    """The sweep of one device.

    Workers, compiled kernels, the calibration and the baseline stay from one task to the next.
    """

    def __init__(self, job: Job) -> None:
        """Find the device and the cases that it has room for, and start a fork server.

        Raises:
            UserError: There is no such device, or the tier is not for it.
        """
        if job.device == "cuda" and not torch.cuda.is_available():
            raise UserError("torch finds no GPU: it is built without CUDA, or lacks the driver")
        self._job, self._solutions = job, job.solutions
        self._memory = DeviceMemory.of(job.device, job.memory)
        with contextlib.redirect_stderr(io.StringIO()) as notes:
            found = tier_cases(self._solutions, job.tier, job.device, job.sample, job.memory)
            self._ops = {op.name: (op, {case.name: case for case in cases}) for op, cases in found}
        self._notes = tuple(notes.getvalue().splitlines())
        if lacking := no_bfloat16(job.device):
            self._notes += (lacking,)
        self.device_info = device_info(job.device, self._solutions, self._memory.budget)
        quiet = not job.verbose
        self._compiler = Compiler(job.device, quiet)
        # timed, each case ends before the next begins
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
        """Yield the answers to tasks, each for a solution and a case."""
        graded_cases: Iterable[Graded | sweep.TooLarge | list[Measured]]
        if self._job.command == "grade":
            again = repeats(self._job.tier, self._job.device)
            graded = (self._sweep.grade(*self._of(task), task.skips, again) for task in tasks)
            graded_cases = self._compiler.behind(itertools.chain.from_iterable(graded))
        else:
            graded_cases = itertools.chain.from_iterable(map(self._measured, tasks))
        yield from map(self._answer, graded_cases)

    def crashed(self, task: Task, reason: str) -> Iterator[Answer]:
        """Yield CRASHED for each solution and case of a task, and run none."""
        op, cases, chosen = self._of(task)
        for case in cases:
            for solution in chosen:
                if not task.skips(solution, case):
                    yield self._crashed(task, op, case, solution, reason)

    @property
    def memory(self) -> dict[str, int]:
        """The most bytes of GPU memory so far, by holder."""
        if self._job.device != "cuda":
            return {}
        harness, device = torch.cuda.max_memory_reserved(), self._memory.peak
        return {"budget": self._memory.budget, "harness": harness, "device": device}

    def _of(self, task: Task) -> tuple[Op[Any], list[Case], list[Solution]]:
        """Return the op, the cases and the solutions of a task."""
        op, cases = self._ops[task.op]
        named = {name for names in task.due.values() for name in names}
        chosen = [
            solution
            for solution in self._solutions
            if solution.op == task.op and solution.name in named
        ]
        return op, [cases[name] for name in task.due], chosen

    def _measured(self, task: Task) -> Iterator[list[Measured] | sweep.TooLarge]:
        if self._measurement is None:
            self._measurement = Measurement(
                self._sweep, self._digests, task.run, self._job.tier, through=self._compiler.behind
            )
        op, cases, chosen = self._of(task)
        return self._measurement.measure(chosen, [(op, cases)], task.skips)

    @functools.cached_property
    def _digests(self) -> dict[Solution, tuple[str, str]]:
        return digests_of(self._solutions)

    def _answer(self, found: Graded | sweep.TooLarge | list[Measured]) -> Answer:
        """Return what was found as an answer; rows with the node and the device."""
        if isinstance(found, sweep.TooLarge):
            return TooLargeAnswer(found.op.name, found.case.name, found.reason)
        if isinstance(found, Graded):
            return VerdictsAnswer(tuple(found.verdicts.values()))
        where = {"node": self.device_info.node, "device": self.device_info.uuid}
        rows = tuple(msgspec.structs.replace(each.row, **where) for each in found)
        return RowsAnswer(rows, tuple(each.samples for each in found))

    def _crashed(
        self, task: Task, op: Op[Any], case: Case, solution: Solution, reason: str
    ) -> Answer:
        if self._job.command == "grade":
            one = functools.partial(Verdict, solution.name, op.name, case.name)
            return VerdictsAnswer(
                tuple(one(direction, "CRASHED", reason) for direction in case.directions)
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
    """Devices that take tasks; a context manager."""

    def __init__(self, job: Job) -> None:
        """Start nothing yet."""
        self.job = job
        self.kinds: dict[str, list[ExecutorReady]] = defaultdict(list)
        """The devices, by kind."""
        self.memory: dict[str, dict[str, int]] = defaultdict(dict)
        """The most bytes of GPU memory that a device of each kind has taken so far, by holder."""
        self._notes: list[str] = []

    def __enter__(self) -> Engine:
        """Start the executors."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """End the executors."""
        raise NotImplementedError

    @property
    def busy(self) -> tuple[int, int]:
        """The executors that are at work, and all that are left."""
        raise NotImplementedError

    def run(self, tasks: Mapping[str, Sequence[Task]]) -> Iterator[tuple[str, Answers]]:
        """Yield each answer to the tasks of each kind of device once, with the kind.

        Raises:
            UserError: No device is left.
        """
        raise NotImplementedError

    @property
    def notes(self) -> list[str]:
        """Lines on the executors and on cases that are left out, without `study: ` before."""
        of_devices = [
            note for kind in self.kinds.values() for ready in kind for note in ready.notes
        ]
        return list(
            dict.fromkeys(note.removeprefix("study: ") for note in [*self._notes, *of_devices])
        )

    def cases(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Return the cases of each op that every device of a kind has room for."""
        first, *others = self.kinds[kind]
        cases = {}
        for op, names in first.cases.items():
            shared = set(names).intersection(*(other.cases.get(op, ()) for other in others))
            cases[op] = tuple(name for name in names if name in shared)
        return cases

    def count(self, kind: str) -> int:
        """Return the number of the cases of all solutions on a kind of device."""
        known = self.cases(kind)
        return sum(len(known.get(solution.op, ())) for solution in self.job.solutions)

    def tasks(
        self, kind: str, run: str = "", done: Collection[tuple[str, str, str]] = ()
    ) -> list[Task]:
        """Return what there is to do on a kind of device: a task for each op.

        Args:
            kind: The kind of device.
            run: The id of the run that rows are for.
            done: Solution, op and case of those that an earlier run has done.
        """
        names: dict[str, list[str]] = defaultdict(list)
        for solution in self.job.solutions:
            names[solution.op].append(solution.name)
        found = []
        for op, cases in self.cases(kind).items():
            due = {
                case: tuple(name for name in names[op] if (name, op, case) not in done)
                for case in cases
            }
            found.append(Task(op, {case: left for case, left in due.items() if left}, run))
        return [task for task in found if task.due]


class LocalEngine(Engine):
    """One executor in this process; without a GPU its threads fill the cores."""

    _executor: Executor
    _running = False

    def __enter__(self) -> LocalEngine:
        """Start the executor."""
        self._executor = Executor(self.job)
        ready = self._executor.ready()
        self.kinds[ready.device_info.kind].append(ready)
        return self

    def __exit__(self, *_: object) -> None:
        """End its workers."""
        self._executor.close()

    @property
    def busy(self) -> tuple[int, int]:
        """The executors that are at work, and all: one."""
        return int(self._running), 1

    def run(self, tasks: Mapping[str, Sequence[Task]]) -> Iterator[tuple[str, Answers]]:
        """Yield each answer as it comes, with the kind of device."""
        ((kind, mine),) = tasks.items()
        self._running = True
        for answer in self._executor.run(mine):
            yield kind, [answer]
        self.memory[kind] = self._executor.memory
        self._running = False
