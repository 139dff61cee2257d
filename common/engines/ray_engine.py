"""Run on several devices of this machine or of a cluster: each executor is a Ray actor.

Ray copies the project's files to the nodes, and restarts a lost actor on its node. The driver gives
each actor one task at a time and receives each result as it comes. When no other case is left, a
lost case runs once more by itself, on another executor if there is one; if it is lost again, it is
CRASHED.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import socket
import tempfile
import textwrap
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.engines.engine import CaseResult, Engine, Executor, Job, Started, Task
from common.errors import UserError
from common.paths import ROOT
from common.processes import VISIBLE, require
from common.solutions import package_of

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable that makes Ray bind to the loopback address only, on Linux too; otherwise each of
its processes listens on every interface. Ray reads it when it is imported."""
OWN = {LOOPBACK: "0", "RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
"""The variables of a cluster of this machine only: Ray kills no process to save memory, and gives
no process a lower priority while it is timed."""
TOKEN = "RAY_AUTH_MODE"
"""The variable that makes Ray send a token; without it, a cluster with an address gets none."""
LONGEST_ANSWER = 10.0
"""Seconds for the head's port to answer."""
TRAVELS = ("common", "contributors", "pyproject.toml")
"""The entries of the repository that are copied to each node."""
TIMED, GRADED = 3, 256
"""The most cases of a timed task, which are graded before any is timed; and the most pairs of a
solution and a case of a graded task."""
TWICE = "its harness ended twice, the second time while it ran only this case"
"""The reason of CRASHED for a case that is lost twice."""
STARTS = 3
"""The number of attempts to start an executor before the start counts as failed."""
LONGEST_START, TAKEN = 120.0, "its GPU is taken"
"""Seconds for executors to start, and why one has not started by then."""


def ray() -> Any:
    """Return the module `ray`, which takes a second to import.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    import ray as module

    return module


# --- an actor, on a node --------------------------------------------------------------------------


class Actor:
    """An executor on a GPU of a node."""

    def __init__(self, job: Job, index: int, executors: int) -> None:
        """Start nothing yet: Ray reports an exception here only as a dead actor.

        The job's solutions have paths relative to the repository, of which each node has its own
        copy. `index` is the executor's number among the `executors` of its node.
        """
        self._job = moved(job, Path(), ROOT)
        self._place = index, executors

    def run(self, task: Task | None) -> Iterator[Started | CaseResult]:
        """Yield the results of a task; without one, that the executor has started.

        A case that was lost twice is CRASHED without another run.

        Raises:
            UserError: The executor cannot start, for a reason that the user can fix.
        """
        executor = self._executor
        messages: Iterable[Started | CaseResult] = [executor.started]
        if task:
            lost_twice = task.losses > 1
            messages = [executor.crashed(task, TWICE)] if lost_twice else executor.run([task])
        for message in messages:  # noqa: UP028, since Ray sends what `yield from` passes on
            yield message

    @functools.cached_property
    def _executor(self) -> Executor:
        """The executor, started on first use, since Ray may have restarted this actor."""
        try:
            require(package_of(each.handle) for each in self._job.solutions if each.peer)
        except ModuleNotFoundError as error:
            raise UserError(f"it lacks the package {error.name}: install it there") from None
        leave_the_project()
        os.sched_setaffinity(0, own_cores(*self._place))
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


def own_cores(index: int, executors: int) -> list[int]:
    """Return cores that no other executor of the node uses, at least two; all if they are too few.

    A compiling process then takes no core from another executor's timing.
    """
    cores = sorted(os.sched_getaffinity(0))
    size = len(cores) // executors
    return cores[index * size : (index + 1) * size] if size > 1 else cores


def leave_the_project() -> None:
    """Move temporary files out of the project, since solutions may write to their folder.

    Ray unpacks the project beneath the folder of temporary files; see `sandbox/landlock.py`.
    """
    folder = Path(tempfile.gettempdir(), f"triton-study-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


# --- the driver's side of an actor ----------------------------------------------------------------


class Lost(Exception):
    """An actor's process or node has ended; the message says how."""


class RemoteExecutor:
    """The driver's handle of one actor, which is starting, busy with a task, or idle."""

    def __init__(self, name: str, actor: Any) -> None:
        """Start the actor's executor."""
        self.name, self.actor = name, actor
        self.ask(None)

    def ask(self, task: Task | None) -> None:
        """Give an idle executor a task; None starts it, once Ray has restarted a lost actor."""
        retries = 0 if task else STARTS - 1
        run = self.actor.run.options(num_returns="streaming", max_task_retries=retries)
        self.task, self.pending = task, run.remote(task)
        """The task, None at a start; and Ray's stream of messages, None if idle."""
        self._done = set[tuple[str, str]]()

    def message(self) -> Started | CaseResult | None:
        """Return the next message, None at the end.

        Raises:
            Lost: The actor or its node has ended.
            UserError: The executor cannot start or go on, for a reason that the user can fix.
            RuntimeError: The harness failed on the device.
        """
        try:
            message: Started | CaseResult = ray().get(next(self.pending))
        except StopIteration:
            self.task = self.pending = None
            return None
        except ray().exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from None
            raise RuntimeError(f"the harness failed on a device:\n{error}") from None
        except ray().exceptions.RayError as error:
            raise Lost(textwrap.shorten(str(error), 160)) from None
        if isinstance(message, CaseResult):
            self._done.add((message.solution, message.case))
        return message

    def left(self) -> Iterator[Task]:
        """Yield what is left of a lost executor's task.

        Each lost case is a task by itself for each solution, so that no solution is blamed for
        another's crash.
        """
        assert self.task
        left = self.task.without(self._done)
        for case, names in left.due.items():
            for due in ({case: (name,)} for name in names):
                yield replace(left, due=due, losses=left.losses + 1, lost_on=self.name)


# --- the driver -----------------------------------------------------------------------------------


class RayEngine(Engine):
    """Runs an executor on each GPU of a cluster or of this machine."""

    def __init__(self, job: Job, address: str | None, gpus: int = 0) -> None:
        """Connect to nothing yet.

        The address is HOST:PORT of a cluster's head; None starts a cluster of this machine's GPUs
        only, `gpus` in number, which no other machine can reach.
        """
        super().__init__(job)
        self._address, self._gpus = address, gpus
        self._executors: list[RemoteExecutor] = []
        self._waiting: deque[Task] = deque()
        """The tasks that no executor has; lost cases are at the end."""

    def __enter__(self) -> RayEngine:
        """Connect, and start the executors.

        Raises:
            UserError: There is no cluster, the cluster has no GPU, or no executor starts.
        """
        try:
            self._connect()
            self._executors = list(self._placed())
            starts = [executor.pending for executor in self._executors]
            _, late = ray().wait(starts, num_returns=len(starts), timeout=LONGEST_START)
            for executor in list(self._executors):
                reason = TAKEN if executor.pending in late else self._starts(executor)
                if reason:
                    self.notes.append(self._remove(executor, f"takes no part: {reason}"))
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
    def busy(self) -> bool:
        """Whether an executor has a task."""
        return any(executor.task for executor in self._executors)

    def run(self, tasks: Sequence[Task]) -> Generator[CaseResult | str]:
        """Run the tasks; see `Engine.run`."""
        yield from self.notes
        self._waiting += tasks
        while self._waiting or self.busy:
            for executor in self._executors:
                if not executor.pending and (part := self._next(executor)):
                    executor.ask(part)
            yield from self._receive()

    def _connect(self) -> None:
        """Connect to the cluster, or start it.

        Raises:
            UserError: There is no cluster at the address, or it has another version or token.
        """
        how: dict[str, Any] = {"address": self._address}
        if not self._address:
            os.environ.update(OWN | os.environ)
            how = {"address": "local", "include_dashboard": False}
            how |= {"num_gpus": self._gpus, "num_cpus": self._gpus}
        excluded = [f"/{path.name}" for path in ROOT.iterdir() if path.name not in TRAVELS]
        how["runtime_env"] = {"working_dir": str(ROOT), "excludes": [*excluded, "__pycache__"]}
        try:
            if self._address:  # without an answer, Ray would retry for minutes
                host, _, port = self._address.rpartition(":")
                socket.create_connection((host, int(port)), LONGEST_ANSWER).close()
            ray().init(log_to_driver=False, logging_level="ERROR", **how)
        except (OSError, ValueError, RuntimeError, ray().exceptions.RayError) as error:
            where, why = self._address or "this machine", " ".join(str(error).split())
            hint = "" if TOKEN in os.environ else f"; if it asks for a token, set {TOKEN}=token"
            raise UserError(f"no connection to a Ray cluster at {where}: {why}{hint}") from None

    def _placed(self) -> Iterator[RemoteExecutor]:
        """Start an actor for each executor, which Ray keeps on its node.

        Raises:
            UserError: The cluster has no GPU.
        """
        nodes = [node for node in ray().nodes() if node["Alive"]]
        gpus = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in nodes}
        if not any(gpus.values()):
            raise UserError("the Ray cluster has no GPU: leave --address out")
        on_node = ray().util.scheduling_strategies.NodeAffinitySchedulingStrategy
        job, numbers = moved(self.job, ROOT, Path()), itertools.count()
        for node, executors in gpus.items():
            actor = ray().remote(Actor).options(
                num_cpus=1, num_gpus=1, max_restarts=-1, max_task_retries=STARTS - 1,
                scheduling_strategy=on_node(node, soft=False),
            )  # fmt: skip
            for index in range(executors):
                made = actor.remote(job, index, executors)
                yield RemoteExecutor(f"executor {next(numbers)}", made)

    def _starts(self, executor: RemoteExecutor) -> str:
        """Take an executor's message at a start; return the reason if it cannot run, or "".

        Raises:
            RuntimeError: The harness failed on the device.
        """
        try:
            message = executor.message()
        except (Lost, UserError) as error:
            return str(error)
        return self._unfit(message) if isinstance(message, Started) else ""

    def _unfit(self, started: Started) -> str:
        """Return why an executor cannot run what the first one can, or ""."""
        if not hasattr(self, "started"):
            self.started = started
        first = self.started
        if started.device_info.name != first.device_info.name:
            return f"is another device than {first.device_info.name}"
        if started.device_info.versions != first.device_info.versions:
            return "has other versions of its packages"
        if any({*cases} - {*started.cases.get(op, ())} for op, cases in first.cases.items()):
            return "has too little free memory"
        self.notes += [note for note in started.notes if note not in self.notes]
        return ""

    def _remove(self, executor: RemoteExecutor, event: str) -> str:
        """Remove an executor, and return the message for the user."""
        self._executors.remove(executor)
        ray().kill(executor.actor)
        return f"{executor.name} {event}"

    def _next(self, executor: RemoteExecutor) -> Task | None:
        """Take the next task for an executor, at most half of its share of the waiting cases.

        The last tasks are small, so that all devices end at about the same time. A lost case waits
        until no executor is busy, and goes to another executor if there is one.
        """
        queue, executors = self._waiting, len(self._executors)
        if not queue or (
            queue[0].losses and (self.busy or (queue[0].lost_on == executor.name and executors > 1))
        ):
            return None
        half = math.ceil(sum(len(task.due) for task in queue) / (2 * executors))
        solutions = max(map(len, queue[0].due.values()))
        most = TIMED if self.job.command == "bench" else max(GRADED // solutions, 1)
        part, rest = queue.popleft().split(min(half, most))
        if rest.due:
            queue.appendleft(rest)
        return part

    def _receive(self) -> Iterator[CaseResult | str]:
        """Wait for messages of executors, and yield the results and the user's messages.

        Raises:
            UserError: No executor is left that could send a message.
            RuntimeError: The harness failed on a device.
        """
        pending = {executor.pending: executor for executor in self._executors if executor.pending}
        ready, _ = ray().wait([*pending], timeout=LONGEST_START) if pending else ([], [])
        if not (ready or self.busy):
            for executor in pending.values():
                yield self._remove(executor, f"does not start again: {TAKEN}")
        if not self._executors:
            raise UserError("no device is left for the other cases; repeat the command to continue")
        for executor in map(pending.__getitem__, ready):
            if not executor.task:
                if reason := self._starts(executor):
                    yield self._remove(executor, f"does not start again: {reason}")
                continue
            try:
                message = executor.message()
            except Lost as lost:
                yield f"{executor.name} was lost: {lost}"
                self._waiting += executor.left()
                executor.ask(None)
                continue
            if isinstance(message, CaseResult):
                yield message
