"""Run on several devices of this machine or of a cluster: each executor is a Ray actor.

Ray places the actors, copies the project's files to them, and restarts a lost actor. The driver
gives each actor one task at a time and receives each result as it comes. When no other case is
left, a lost case runs once more by itself, on another executor if there is one; if it is lost
again, it is CRASHED.
"""

from __future__ import annotations

import functools
import math
import os
import socket
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.engines.cluster import Cluster, ray
from common.engines.engine import CaseResult, Engine, Executor, Job, Started, Task
from common.errors import UserError
from common.paths import ROOT
from common.processes import VISIBLE, require
from common.solutions import package_of

SIZES = {"bench": (1, 3), "grade": (16, 256)}
"""The fewest and the most cases of a task; `bench` grades all its cases before it times any."""
TWICE = "its harness ended twice, the second time while it ran only this case"
"""The reason of CRASHED for a case that is lost twice."""
SUSPECTS = 16
"""The number of cases, from a lost task's first unfinished case on, that may have been running."""
STARTS = 3
"""The number of attempts to start an executor before the start counts as failed."""
POLL = 10.0
"""Seconds between two looks at the executors that have not begun."""

# --- an actor, on a node --------------------------------------------------------------------------


class Actor:
    """An executor on a GPU of a node, or on some of its cores."""

    def __init__(self, job: Job, neighbours: int) -> None:
        """Start nothing yet: Ray reports an exception here only as a dead actor.

        Args:
            job: The job; its solutions have paths relative to the repository, of which each node
                has its own copy.
            neighbours: The most executors of a node.
        """
        self._job = moved(job, Path(), ROOT)
        self._neighbours = neighbours

    def start(self) -> Started:
        """Return the executor's device and its cases.

        Raises:
            UserError: The executor cannot start, for a reason that the user can fix.
        """
        return self._executor.started

    def run(self, task: Task) -> Iterator[CaseResult | None]:
        """Yield None, which tells the driver that the task has begun, and then the results.

        A case that was lost twice is CRASHED without another run.
        """
        yield None
        executor, lost_twice = self._executor, task.losses > 1
        results = [executor.crashed(task, TWICE)] if lost_twice else executor.run([task])
        for result in results:  # noqa: UP028, since Ray sends a value that `yield from` passes on
            yield result

    @functools.cached_property
    def _executor(self) -> Executor:
        """The executor, started on first use, since Ray may have restarted this actor."""
        try:
            require(package_of(each.handle) for each in self._job.solutions if each.peer)
        except ModuleNotFoundError as error:
            raise UserError(f"it lacks the package {error.name}: install it there") from None
        leave_the_project()
        self._cores = own_cores(self._neighbours)
        if self._job.device == "cpu":
            os.environ[VISIBLE] = ""
        return Executor(self._job)


def moved(job: Job, old: Path, new: Path) -> Job:
    """Return the job with the paths of its solutions beneath `old` moved beneath `new`."""
    return replace(job, solutions=tuple(
        replace(solution, path=new / solution.path.relative_to(old))
        if solution.path.is_relative_to(old) else solution
        for solution in job.solutions
    ))  # fmt: skip


def own_cores(executors: int) -> socket.socket | None:
    """Pin this process to cores that no other executor of the node uses, at least two.

    A compiling process then takes no core from another executor's timing. With fewer cores, all
    executors share all cores.

    Return the claim, a socket whose name the kernel frees when this process ends.
    """
    cores = sorted(os.sched_getaffinity(0))
    size = len(cores) // executors
    if size < 2:
        return None
    for first in range(0, size * executors, size):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0triton-study, {size} cores from {cores[first]}")
        except OSError:  # another executor has them
            claim.close()
            continue
        os.sched_setaffinity(0, cores[first : first + size])
        return claim
    return None


def leave_the_project() -> None:
    """Move temporary files out of the project, since solutions may write to their folder.

    Ray unpacks the project beneath the folder of temporary files; see `sandbox/landlock.py`.
    """
    folder = Path(tempfile.gettempdir(), f"triton-study-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


# --- the driver -----------------------------------------------------------------------------------


class Lost(Exception):
    """An actor's process or node has ended; the message says how."""


class RemoteExecutor:
    """The driver's handle of one actor, which is starting, busy with a task, or idle."""

    def __init__(self, name: str, actor: Any) -> None:
        """Start the actor's executor."""
        self.name, self.actor = name, actor
        self.kind = ""
        """The kind of its device, "" before the first start."""
        self.start()

    def start(self) -> None:
        """Start the executor; if the actor was lost, once Ray has restarted it."""
        self._ask(None, self.actor.start.remote())

    def give(self, task: Task) -> None:
        """Give a task to an idle executor."""
        run = self.actor.run.options(num_returns="streaming", max_task_retries=0)
        self._ask(task, run.remote(task))

    def _ask(self, task: Task | None, pending: Any) -> None:
        self.task, self.pending = task, pending
        """The task, None at a start; and Ray's reference to the next message, None if idle."""
        self.begun, self._done = False, set[tuple[str, str]]()
        self._since = time.monotonic()

    @property
    def silence(self) -> float:
        """The seconds since the executor was asked to do what it has not begun yet."""
        return 0.0 if self.begun else time.monotonic() - self._since

    def message(self) -> Any:
        """Return the next message: Started, a result, or None at a task's begin and end.

        Raises:
            Lost: The actor or its node has ended.
            UserError: The executor cannot start, for a reason that the user can fix.
            RuntimeError: The harness failed on the device.
        """
        try:
            message = ray().get(next(self.pending) if self.task else self.pending)
        except StopIteration:
            self.task = message = None
        except ray().exceptions.RayError as error:
            raise failure_of(error) from None
        self.begun = True
        if not self.task:
            self.pending = None
        elif message:
            self._done.add((message.solution, message.case))
        return message

    def left(self) -> Iterator[Task]:
        """Yield what is left of a lost executor's task: first its waiting and then its lost cases.

        A lost case is a task by itself for each solution, so that no solution is blamed for
        another's crash. Before the task has begun, none of its cases can be lost.
        """
        if self.task:
            left = self.task.without(self._done)
            lost, waiting = left.split(SUSPECTS if self.begun else 0)
            yield from [waiting] if waiting.due else []
            for case, names in lost.due.items():
                for due in ({case: (name,)} for name in names):
                    yield replace(left, due=due, losses=left.losses + 1, lost_on=self.name)


class RayEngine(Engine):
    """Runs executors on the GPUs of a cluster, or several executors that share this machine."""

    def __init__(self, job: Job, cluster: Cluster) -> None:
        """Connect to nothing yet."""
        super().__init__(job)
        self._cluster = cluster
        self._executors: list[RemoteExecutor] = []
        self._waiting: dict[str, deque[Task]] = defaultdict(deque)
        """The tasks that no executor has, by kind of device; lost cases are at the end."""

    def __enter__(self) -> RayEngine:
        """Connect, and start the executors.

        Raises:
            UserError: There is no cluster, the cluster has no GPU, or no executor starts.
        """
        try:
            self._cluster.connect()
            self._place()
            while any(executor.pending for executor in self._executors):
                self.notes += self._receive()  # in the main thread, so that Ctrl-C ends the wait
            if not self._executors:
                raise UserError("; ".join(self.notes))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster, which ends the executors."""
        ray().shutdown()

    @property
    def busy(self) -> tuple[int, int]:
        """The number of busy executors, and the number of all executors that are left."""
        return sum(executor.task is not None for executor in self._executors), len(self._executors)

    def run(self, tasks: Sequence[Task]) -> Iterator[CaseResult | str]:
        """Run the tasks; see `Engine.run`."""
        for task in tasks:
            self._waiting[task.kind].append(task)
        while any(self._waiting.values()) or self.busy[0]:
            for executor in self._executors:
                if not executor.pending and (part := self._next(executor)):
                    executor.give(part)
            yield from self._receive()

    def _place(self) -> None:
        """Start an actor for each executor.

        Raises:
            UserError: The cluster has no GPU.
        """
        gpus = [int(node["Resources"].get("GPU", 0)) for node in ray().nodes() if node["Alive"]]
        if not any(gpus) and self.job.device == "cuda":
            raise UserError("the Ray cluster has no GPU: take --engine local")
        share = self._cluster.share
        need = {"num_cpus": 1, "num_gpus": 1 / share if any(gpus) else 0}
        actor = ray().remote(Actor).options(max_restarts=-1, max_task_retries=STARTS - 1, **need)
        job = moved(self.job, ROOT, Path())
        self._executors = [
            RemoteExecutor(f"executor {number}", actor.remote(job, (max(gpus) or 1) * share))
            for number in range((sum(gpus) or 1) * share)
        ]

    def _admit(self, executor: RemoteExecutor) -> str:
        """Admit an executor that has started; return "", or the reason for which it cannot run.

        Raises:
            RuntimeError: The harness failed on the device.
        """
        try:
            started: Started = executor.message()
        except (Lost, UserError) as error:
            return str(error)
        kind = started.device_info.kind
        first = self.kinds.get(kind, [started])[0]
        if first.device_info.versions != started.device_info.versions:
            return "has other versions of its packages"
        if not executor.kind:
            executor.kind = kind
            self.admit(started)
        elif kind != executor.kind or any(
            {*cases} - {*started.cases.get(op, ())} for op, cases in self.cases(kind).items()
        ):
            return "less of its memory is free than before, or it is another device"
        return ""

    def _remove(self, executor: RemoteExecutor, reason: str) -> str:
        """Remove an executor, and return the message for the user."""
        self._executors.remove(executor)
        ray().kill(executor.actor)
        event = "does not start again" if executor.kind else "takes no part"
        return f"{executor.name} {event}: {reason}"

    def _next(self, executor: RemoteExecutor) -> Task | None:
        """Take the next task for an executor, at most half of its share of the waiting cases.

        The last tasks are small, so that all devices end at about the same time. A lost case waits
        until no executor is busy, and goes to another executor if there is one.
        """
        queue = self._waiting[executor.kind]
        sharing = sum(other.kind == executor.kind for other in self._executors)
        if not queue or (
            queue[0].losses
            and (self.busy[0] or (queue[0].lost_on == executor.name and sharing > 1))
        ):
            return None
        least, most = SIZES[self.job.command]
        half = math.ceil(sum(len(task.due) for task in queue) / (2 * sharing))
        part, rest = queue.popleft().split(max(least, min(half, most)))
        if rest.due:
            queue.appendleft(rest)
        return part

    def _receive(self) -> Iterator[Any]:
        """Wait for messages of executors, and yield the results and the user's messages.

        Raises:
            UserError: No executor is left that could send a message.
        """
        pending = {executor.pending: executor for executor in self._executors if executor.pending}
        if not pending:
            raise UserError("no device is left for the other cases; repeat the command to continue")
        for executor in map(pending.__getitem__, ray().wait([*pending], timeout=POLL)[0]):
            if not executor.task:
                if reason := self._admit(executor):
                    yield self._remove(executor, reason)
                continue
            try:
                if result := executor.message():
                    yield result
            except Lost as lost:
                yield f"{executor.name} was lost: {lost}"
                self._wait_again(executor)
                executor.start()
        limit = self._cluster.longest_placing
        away = [each for each in self._executors if each.pending and each.silence > limit]
        for executor in away:
            # Ray has placed it nowhere, or its node ended before it got its task
            self._wait_again(executor)
            yield self._remove(executor, f"its GPU is taken, or its node gone, for {limit:.0f} s")

    def _wait_again(self, executor: RemoteExecutor) -> None:
        """Queue what is left of an executor's task, its lost cases behind all others."""
        queue = self._waiting[executor.kind]
        for task in executor.left():
            (queue.append if task.losses else queue.appendleft)(task)


def failure_of(error: Any) -> Exception:
    """Convert an error of Ray to the executor's own error, or to Lost if the actor has ended."""
    exceptions = ray().exceptions
    if not isinstance(error, exceptions.RayTaskError):
        if isinstance(error, exceptions.ActorUnavailableError):
            return Lost("its process or its node has ended")  # Ray's text is long
        # a traceback is between the first and the last line
        lines = [line.strip() for line in str(error).strip().split("\n")]
        return Lost(" ".join(dict.fromkeys([lines[0], lines[-1]])))
    if isinstance(error.cause, UserError):
        return UserError(str(error.cause))
    return RuntimeError(f"the harness failed on a device:\n{error}")
