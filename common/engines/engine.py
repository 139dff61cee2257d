"""The devices that `bench` and `grade` run on: an engine has one executor per device.

An executor is the harness on one device. With one device, the command's own process is the executor
(`Engine`); `ray_engine` distributes the work over several devices.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import torch

from common.errors import UserError
from common.grading import sweep
from common.grading.compiling import Compiler
from common.grading.device import DeviceMemory, left_out, repeats, tier_cases
from common.grading.sweep import Graded, TooLarge
from common.measure.machine import DeviceInfo, device_info, digests_of
from common.measure.rows import Measured, Measurement, record_of
from common.records.lines import Record
from common.records.runs import Samples
from common.solutions import Solution
from common.spec import DIRECTIONS, Case, Op, Tier
from common.verdicts import Verdict

Skips = Callable[[Solution, Case], bool]
"""Returns whether to leave a solution out of a case."""

# --- tasks and results ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options that all tasks of one command share."""

    command: Literal["bench", "grade"]
    device: Literal["cpu", "cuda"]
    solutions: tuple[Solution, ...]
    tier: Tier
    sample: int | None = None
    cases: tuple[str, ...] = ()
    """The names of the cases in place of the tier's; see `ops/_names.py`."""
    verbose: bool = False


@dataclass(frozen=True)
class Task:
    """Cases of one op for one device, and the solutions to run on each case."""

    op: str
    due: Mapping[str, tuple[str, ...]]
    """The solutions' names, by case."""
    losses: int = 0
    """The number of executors that were lost while they ran the case."""
    lost_on: str = ""
    """The executor that was lost last."""

    def without(self, done: Collection[tuple[str, str]]) -> Task:
        """Return the task without the pairs of a solution, or "" for all, and a case."""
        left = {
            case: tuple(name for name in names if (name, case) not in done)
            for case, names in self.due.items()
            if ("", case) not in done
        }
        return replace(self, due={case: names for case, names in left.items() if names})

    @property
    def pairs(self) -> int:
        """The number of pairs of a solution and a case."""
        return sum(map(len, self.due.values()))

    def split(self, count: int) -> tuple[Task, Task]:
        """Return the first `count` cases and the others."""
        due = [*self.due.items()]
        return replace(self, due=dict(due[:count])), replace(self, due=dict(due[count:]))


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The result of one solution on a case, or a case that does not fit the device."""

    op: str
    case: str
    solution: str = ""
    """The solution's name; "" if the case does not fit."""
    verdicts: tuple[Verdict, ...] = ()
    """The verdicts of `grade`, by direction."""
    rows: tuple[Record, ...] = ()
    """The rows of `bench`, by direction; the driver adds the run's id."""
    samples: tuple[Samples, ...] = ()
    """The raw samples of each row."""
    too_large: str = ""
    """A line that says why the case does not fit."""

    @classmethod
    def of(cls, found: Sequence[Verdict | Record], **fields: Any) -> CaseResult:
        """Return the result that consists of these verdicts or rows."""
        name = "rows" if isinstance(found[0], Record) else "verdicts"
        of, fields = found[0], {name: tuple(found), **fields}
        return cls(op=of.op, case=of.case, solution=of.solution, **fields)


@dataclass(frozen=True)
class Started:
    """Reports that an executor has started: its device, and the cases of each op that fit it."""

    device_info: DeviceInfo
    cases: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    """Messages about cases that are left out."""


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
        self._job, notes = job, list[str]()
        memory = DeviceMemory.of(job.device)
        by_op = tier_cases(job.solutions, job.tier, job.device, job.sample, notes.append, job.cases)
        self._ops = {op.name: (op, {case.name: case for case in cases}) for op, cases in by_op}
        self.started = Started(
            device_info(job.device, job.solutions),
            {name: tuple(cases) for name, (_, cases) in self._ops.items()},
            tuple(notes),
        )
        quiet = not job.verbose
        self._compiler = Compiler(job.device, quiet)
        # a timed case ends before the next begins
        overlap = None if job.command == "bench" else True
        self._sweep = sweep.Sweep(job.device, quiet, overlap=overlap, memory=memory)

    def close(self) -> None:
        """End the workers."""
        with self._compiler:
            self._sweep.__exit__()

    def run(self, tasks: Iterable[Task]) -> Iterator[CaseResult]:
        """Yield the result of each solution and case of the tasks."""
        results: Iterable[Graded | TooLarge | list[Measured]]
        if self._job.command == "grade":
            again = repeats(self._job.tier, self._job.device)
            graded = (self._sweep.grade(*self._resolve(task), again) for task in tasks)
            results = self._compiler.behind(itertools.chain.from_iterable(graded))
        else:
            results = itertools.chain.from_iterable(map(self._measure, tasks))
        yield from map(self._result, results)

    def crashed(self, task: Task, reason: str) -> CaseResult:
        """Return CRASHED for the one solution and case of a task, without running it."""
        op, (case,), (solution,), _ = self._resolve(task)
        crash: dict[str, Any] = {"verdict": "CRASHED", "reason": reason}
        if self._job.command == "grade":
            names = solution.name, op.name, case.name
            return CaseResult.of([Verdict(*names, each, **crash) for each in case.directions])
        tier, digests = self._job.tier, self._digests[solution]
        rows = [record_of(op, case, each, solution, tier, digests, **crash) for each in DIRECTIONS]
        return CaseResult.of(rows)

    def _resolve(self, task: Task) -> tuple[Op[Any], list[Case], list[Solution], Skips]:
        """Return the op, the cases and the solutions of a task, and which to leave out."""
        op, cases = self._ops[task.op]
        due, names = [cases[name] for name in task.due], {*itertools.chain(*task.due.values())}
        chosen = [each for each in self._job.solutions if each.op == op.name and each.name in names]
        return op, due, chosen, lambda solution, case: solution.name not in task.due[case.name]

    @functools.cached_property
    def _digests(self) -> dict[Solution, tuple[str, str]]:
        return digests_of(self._job.solutions)

    @functools.cached_property
    def _measurement(self) -> Measurement:
        behind = self._compiler.behind
        return Measurement(self._sweep, self._digests, tier=self._job.tier, through=behind)

    def _measure(self, task: Task) -> Iterator[list[Measured] | TooLarge]:
        op, cases, chosen, skips = self._resolve(task)
        return self._measurement.measure(chosen, [(op, cases)], skips)

    def _result(self, result: Graded | TooLarge | list[Measured]) -> CaseResult:
        """Return a result of the sweep; rows name the node and the device."""
        if isinstance(result, TooLarge):
            line = left_out(result.op, result.case, result.reason)
            return CaseResult(op=result.op.name, case=result.case.name, too_large=line)
        if isinstance(result, Graded):
            return CaseResult.of([*result.verdicts.values()])
        device = self.started.device_info
        where = {"node": device.node, "device": device.uuid}
        rows = [msgspec.structs.replace(measured.row, **where) for measured in result]
        samples = tuple(measured.samples for measured in result)
        return CaseResult.of(rows, samples=samples)


class Engine:
    """Devices of one kind that run tasks, here the one of this process; `RayEngine` has several.

    A context manager, which starts and ends the executors. Without a GPU, the threads of the one
    executor use all cores.
    """

    started: Started
    """The first executor, whose cases every other has room for."""
    _executor: Executor

    def __init__(self, job: Job) -> None:
        """Start nothing yet."""
        self.job = job
        self.notes: list[str] = []
        """Messages about executors and left-out cases."""

    def __enter__(self) -> Engine:
        """Start the executors."""
        self._executor = Executor(self.job)
        self.started = self._executor.started
        self.notes += self.started.notes
        return self

    def __exit__(self, *_: object) -> None:
        """End the executors."""
        self._executor.close()

    def run(self, tasks: Sequence[Task]) -> Generator[CaseResult | str]:
        """Run the tasks; yield the notes, each result once, as it comes, and further messages.

        Raises:
            UserError: No device is left.
        """
        yield from self.notes
        yield from self._executor.run(tasks)

    def tasks(self, done: Collection[tuple[str, str]] = ()) -> list[Task]:
        """Return the tasks, one per op, without the pairs of `done`.

        A pair is a solution, or "" for all, and a case.
        """
        tasks = []
        for op, cases in self.started.cases.items():
            names = tuple(each.name for each in self.job.solutions if each.op == op)
            tasks.append(Task(op, dict.fromkeys(cases, names)).without(done))
        return [task for task in tasks if task.due]
