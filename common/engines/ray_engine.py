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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.engines.cluster import Cluster, ray
from common.engines.engine import CaseResult, Engine, Executor, Job, Started, Task
from common.errors import UserError
from common.importing import require
from common.paths import ROOT
from common.processes import VISIBLE
from common.solutions import Solution, package_of

SIZES = {"bench": (1, 3), "grade": (16, 1024)}
"""The fewest and the most cases of a task; `bench` grades all its cases before it times any."""
TWICE = "its harness ended twice, the second time while it ran only this case"
"""The reason of CRASHED for a case that is lost twice."""
SUSPECTS = 16
"""The number of cases, from a lost task's first unfinished case on, that may have been running."""
STARTS = 3
"""The number of attempts to start an executor before the start counts as failed."""
LONGEST_BEGIN = 10.0
"""Seconds for an executor to begin a task; afterwards its node counts as gone."""

# --- an actor, on a node --------------------------------------------------------------------------


class Actor:
    """An executor on a GPU of a node, or on some of its cores."""

    def __init__(self, job: Job, neighbours: int) -> None:
        """Start nothing yet: Ray reports an exception here only as a dead actor.

        Args:
            job: The job; its solutions have the paths that `relative` returns.
            neighbours: The most executors of a node.
        """
        self._job = replace(job, solutions=moved(job, ROOT.joinpath))
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


def moved(job: Job, move: Callable[[Path], Path]) -> tuple[Solution, ...]:
    """Return the job's solutions with each path mapped by `move`."""
    return tuple(replace(solution, path=move(solution.path)) for solution in job.solutions)


def relative(path: Path) -> Path:
    """Return a path relative to the repository, since each node has its own copy."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


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
        self.task: Task | None = None
        self.since = time.monotonic()
        self.pending: Any = self.actor.start.remote()
        """Ray's reference to the next message; None if the executor is idle."""

    def give(self, task: Task) -> None:
        """Give a task to an idle executor."""
        self.task, self.begun, self._done = task, False, set[tuple[str, str]]()
        run = self.actor.run.options(num_returns="streaming", max_task_retries=0)
        self.pending = run.remote(task)

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
        assert self.task
        left = self.task.without(self._done)
        suspects, waiting = left.split(SUSPECTS if self.begun else 0)
        yield waiting
        for case, names in suspects.due.items():
            for name in names:
                yield replace(left, due={case: (name,)}, losses=left.losses + 1, lost_on=self.name)


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
        """Start an actor for each executor, and wait for the actors that Ray can place.

        This runs in the main thread, so that Ctrl-C ends it.

        Raises:
            UserError: The cluster has no GPU.
        """
        gpus = [int(node["Resources"].get("GPU", 0)) for node in ray().nodes() if node["Alive"]]
        if not any(gpus) and self.job.device == "cuda":
            raise UserError("the Ray cluster has no GPU: take --engine local")
        share, limit = self._cluster.share, self._cluster.longest_placing
        need = {"num_cpus": 1, "num_gpus": 1 / share if any(gpus) else 0}
        actor = ray().remote(Actor).options(max_restarts=-1, max_task_retries=STARTS - 1, **need)
        job = replace(self.job, solutions=moved(self.job, relative))
        self._executors = [
            RemoteExecutor(f"executor {number}", actor.remote(job, (max(gpus) or 1) * share))
            for number in range((sum(gpus) or 1) * share)
        ]
        placed = {each.actor.__ray_ready__.remote(): each for each in self._executors}
        for late in ray().wait([*placed], num_returns=len(placed), timeout=limit)[1]:
            reason = f"its GPU is taken, or no core is free, for {limit:.0f} s"
            self.notes.append(self._remove(placed[late], reason))
        for executor in list(self._executors):
            if reason := self._admit(executor):
                self.notes.append(self._remove(executor, reason))

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

    def _receive(self) -> Iterator[CaseResult | str]:
        """Wait for the next message of an executor, and yield a result or the user's message.

        Raises:
            UserError: No executor is left that could send a message.
        """
        pending = {executor.pending: executor for executor in self._executors if executor.pending}
        if not pending:
            raise UserError("no device is left for the other cases; repeat the command to continue")
        ready, _ = ray().wait([*pending], timeout=LONGEST_BEGIN)
        for executor in map(pending.__getitem__, ready):
            if not executor.task:
                if reason := self._admit(executor):
                    yield self._remove(executor, reason)
                continue
            try:
                if result := executor.message():
                    yield result
            except Lost as lost:
                yield f"{executor.name} was lost: {lost}"
                waiting, *lost_cases = executor.left()
                queue = self._waiting[executor.kind]
                queue.extendleft([waiting] if waiting.due else [])
                queue.extend(lost_cases)
                executor.start()
        if not ready:
            yield from self._end_waits()

    def _end_waits(self) -> Iterator[str]:
        """Cancel tasks that have not begun; if no executor is busy, remove those that are away.

        Ray reports a lost node to the tasks that run on it. A task that an executor gets after the
        end of its node waits until Ray has restarted the actor, so that it is cancelled.
        """
        busy, limit = self.busy[0], self._cluster.longest_placing
        for executor in [executor for executor in self._executors if executor.pending]:
            if executor.task:
                if not executor.begun:
                    ray().cancel(executor.pending)  # the next message is that it was lost
            elif not busy and time.monotonic() - executor.since > limit:
                yield self._remove(executor, f"it is not back after {limit:.0f} s")


def failure_of(error: Any) -> Exception:
    """Convert an error of Ray to the executor's own error, or to Lost if the actor has ended."""
    exceptions = ray().exceptions
    if not isinstance(error, exceptions.RayTaskError):
        if isinstance(error, (exceptions.ActorUnavailableError, exceptions.TaskCancelledError)):
            return Lost("its process or its node has ended")  # Ray's text is long
        # a traceback is between the first and the last line
        lines = [line.strip() for line in str(error).strip().split("\n")]
        return Lost(" ".join(dict.fromkeys([lines[0], lines[-1]])))
    if isinstance(error.cause, UserError):
        return UserError(str(error.cause))
    return RuntimeError(f"the harness failed on a device:\n{error}")
