"""Run on several devices of this machine or of a cluster: each executor is a Ray actor.

Ray places the actors, copies the project's files to them, and restarts a lost actor. The driver
gives each actor one task at a time and receives its answers case by case. When all other cases are
done, a lost case runs once more by itself, on another executor if there is one; if it is lost
again, it is CRASHED.
"""

from __future__ import annotations

import functools
import math
import os
import socket
import tempfile
import time
import tomllib
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from common.engines.engine import Answer, Answers, Engine, Executor, ExecutorReady, Job, Task
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
LONGEST_PLACING = 120.0
"""Seconds for Ray to find a GPU for an actor; afterwards the GPU counts as taken or gone."""
LONGEST_INSTALLATION = 1800.0
"""The same limit if the nodes install the packages first, which an actor waits for too."""
LONGEST_SILENCE = 3600.0
"""Seconds without an answer after which a busy executor is killed: its GPU's driver may hang."""
LONGEST_END = 20.0
"""Seconds for an executor to end its workers."""
POLL = 10.0
"""Seconds between two checks for silent executors."""

# --- an actor, on a node --------------------------------------------------------------------------


class Actor:
    """An executor on a GPU of a node, or on some of its cores."""

    def __init__(self, job: Job, share: int) -> None:
        """Start nothing yet: Ray reports an exception here only as a dead actor.

        The job's solutions have the paths that `relative` returns.
        """
        self._job, self._share = replace(job, solutions=moved(job, ROOT.joinpath)), share

    def start(self) -> ExecutorReady:
        """Return the executor's device and its cases.

        Raises:
            UserError: The executor cannot start, for a reason that the user can fix.
        """
        return replace(self._executor.ready(), node_id=ray().get_runtime_context().get_node_id())

    def run(self, task: Task) -> Iterator[tuple[list[Answer], dict[str, int]]]:
        """Yield the answers to each case once they are complete, and the executor's peak memory."""
        for answers in by_case(self._executor.run([task]), task):
            yield answers, self._executor.memory

    def crashed(self, task: Task, reason: str) -> list[Answer]:
        """Return CRASHED for each due case of a task, without running any."""
        return list(self._executor.crashed(task, reason))

    def close(self) -> None:
        """End the executor's workers, unless Ray has just restarted this actor."""
        if executor := vars(self).get("_executor"):
            executor.close()

    @functools.cached_property
    def _executor(self) -> Executor:
        """The executor, started on first use, since Ray may have restarted this actor."""
        try:
            require(
                sorted(
                    {
                        package_of(solution.handle)
                        for solution in self._job.solutions
                        if solution.peer
                    }
                )
            )
        except ModuleNotFoundError as error:
            raise UserError(f"it lacks the package {error.name}: install it there") from None
        _leave_the_project()
        node_id = ray().get_runtime_context().get_node_id()
        (resources,) = (node["Resources"] for node in ray().nodes() if node["NodeID"] == node_id)
        self._cores = own_cores(int(resources.get("GPU", 1)) * self._share)
        if self._job.device == "cpu":
            os.environ[VISIBLE] = ""
        return Executor(self._job)


def moved(job: Job, path: Callable[[Path], Path]) -> tuple[Solution, ...]:
    """Return the job's solutions with each path mapped by `path`."""
    return tuple(replace(solution, path=path(solution.path)) for solution in job.solutions)


def relative(path: Path) -> Path:
    """Return a path relative to the repository, since each node has its own copy."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def by_case(answers: Iterable[Answer], task: Task) -> Iterator[list[Answer]]:
    """Yield the answers to each case once complete; cases that did not fit come at the end."""
    waiting: dict[str, dict[str | None, Answer]] = defaultdict(dict)
    for answer in answers:
        solution, case = answer.of
        waiting[case][solution] = answer
        if waiting[case].keys() == {*task.due[case]}:
            yield [*waiting.pop(case).values()]
    for too_large in waiting.values():
        yield [*too_large.values()]


def own_cores(executors: int) -> socket.socket | None:
    """Pin this process to cores that no other executor of the node uses.

    Return the claim, a socket whose name the kernel frees when this process ends.
    """
    for cores in share_cores(sorted(os.sched_getaffinity(0)), executors):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0triton-study, cores {cores[0]} to {cores[-1]}")
        except OSError:  # another executor has them
            claim.close()
            continue
        os.sched_setaffinity(0, cores)
        return claim
    return None


def share_cores(cores: Sequence[int], executors: int) -> list[Sequence[int]]:
    """Return the cores of each executor: neighbours that no other executor uses.

    A compiling process then takes no core from another executor's timing. With fewer than two cores
    per executor, all executors share all cores.
    """
    size = len(cores) // executors
    if size < 2:
        return [cores] * executors
    return [cores[i * size : (i + 1) * size] for i in range(executors)]


def _leave_the_project() -> None:
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
        self.name, self._actor = name, actor
        self.kind = ""
        """The kind of its device, or "" before its first start."""
        self.node_id = ""
        """Ray's name of the node of the last start."""
        self.pending: Any = None
        """Ray's reference to the next message; None if the executor is idle."""
        self.placed = actor.__ray_ready__.remote()
        self.start()

    def start(self) -> None:
        """Start the executor; if the actor was lost, once Ray has restarted it."""
        self.task: Task | None = None
        self._expect(self._actor.start.remote())

    def give(self, task: Task) -> None:
        """Give a task to an idle executor."""
        self.task, self.left = task, dict(task.due)
        run = self._actor.run.options(num_returns="streaming", max_task_retries=0)
        self._expect(run.remote(task))

    def word(self) -> Any:
        """Return the next message: ExecutorReady, a case's answers, or None at a task's end.

        Raises:
            Lost: The actor or its node has ended.
            UserError: The executor cannot start, for a reason that the user can fix.
            RuntimeError: The harness failed on the device.
        """
        try:
            message = ray().get(next(self.pending) if self.task else self.pending)
        except StopIteration:
            message = None
        except ray().exceptions.RayError as error:
            raise _failure_of(error) from None
        if isinstance(message, tuple):
            for answer in message[0]:
                self.left.pop(answer.of[1], None)
            self.heard = time.monotonic()
        else:
            self.task = self.pending = None
        return message

    def crashed(self, task: Task, reason: str) -> list[Answer]:
        """Return CRASHED for each due case of a task; raise `word`'s errors."""
        try:
            answers: list[Answer] = ray().get(self._actor.crashed.remote(task, reason))
            return answers
        except ray().exceptions.RayError as error:
            raise _failure_of(error) from None

    def cancel(self) -> None:
        """Give up the current task; its next message is that the executor was lost."""
        ray().cancel(self.pending)

    def interrupt(self) -> None:
        """Kill the actor, which Ray then restarts."""
        ray().kill(self._actor, no_restart=False)

    def close(self) -> Any:
        """Let an idle executor end its workers; return Ray's reference."""
        return self._actor.close.remote()

    def kill(self) -> None:
        """Kill the actor, which Ray then does not restart."""
        ray().kill(self._actor)

    def _expect(self, pending: Any) -> None:
        self.pending, self.heard = pending, time.monotonic()


class RayEngine(Engine):
    """Runs executors on the GPUs of a cluster, or several executors that share this machine."""

    def __init__(
        self,
        job: Job,
        address: str | None = None,
        install: bool = False,
        gpus: int = 0,
        share: int = 1,
    ) -> None:
        """Connect to nothing yet.

        Args:
            job: The job.
            address: HOST:PORT of the cluster's head; None for a cluster of this machine only,
                which no other machine can reach.
            install: Whether each node first installs the packages of the group `run`.
            gpus: The number of GPUs of a cluster of this machine only.
            share: The executors that share each GPU or, without one, this machine's cores.
        """
        super().__init__(job)
        self._address, self._install, self._gpus, self._share = address, install, gpus, share
        self._executors: list[RemoteExecutor] = []
        self._lost: list[tuple[RemoteExecutor, Task]] = []

    def __enter__(self) -> RayEngine:
        """Connect, and start the executors.

        Raises:
            UserError: There is no cluster, the cluster has no GPU, or no executor starts.
        """
        try:
            self._connect()
            self._place()
            if not self._executors:
                raise UserError("; ".join(self._notes))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the executors, and leave the cluster."""
        if ray().is_initialized():
            if ending := [executor.close() for executor in self._executors if not executor.pending]:
                ray().wait(ending, num_returns=len(ending), timeout=LONGEST_END)
            for executor in self._executors:
                executor.kill()
            ray().shutdown()

    @property
    def busy(self) -> tuple[int, int]:
        """The number of busy executors, and the number of all executors that are left."""
        return sum(executor.task is not None for executor in self._executors), len(self._executors)

    def run(self, tasks: Mapping[str, Sequence[Task]]) -> Iterator[tuple[str, Answers]]:
        """Run the tasks; yield the answers to each case once, with the kind of device.

        Raises:
            UserError: No executor of a kind is left.
        """
        waiting = {kind: deque(self._parts(kind, of_kind)) for kind, of_kind in tasks.items()}
        lost: list[tuple[RemoteExecutor, Task]] = []
        while any(waiting.values()) or self.busy[0]:
            for executor in self._executors:
                if not executor.pending and (queue := waiting.get(executor.kind)):
                    executor.give(queue.popleft())
            yield from self._receive()
            while self._lost:
                executor, task = self._lost.pop()
                suspects, others = _split(task, SUSPECTS)
                lost.append((executor, suspects))
                if others.due:
                    waiting[executor.kind].appendleft(others)
        for executor, task in lost:
            yield from self._retry(executor, task)

    def _connect(self) -> None:
        """Connect to the cluster, or start one of this machine only."""
        resources: dict[str, Any] = {}
        if self._address is None:
            cpus = (self._gpus or 1) * self._share
            resources = {"num_cpus": cpus, "num_gpus": self._gpus}
        connect(self._address, runtime_environment(self._install), resources)

    def _place(self) -> None:
        """Start an actor for each executor, and wait for the actors that Ray can place.

        This runs in the main thread, so that Ctrl-C ends it.

        Raises:
            UserError: The cluster has no GPU.
        """
        nodes = (node["Resources"] for node in ray().nodes() if node["Alive"])
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
        if not gpus and self.job.device == "cuda":
            raise UserError("the Ray cluster has no GPU: take --engine local")
        need = {"num_cpus": 1, "num_gpus": 1 / self._share if gpus else 0}
        actor = ray().remote(Actor).options(max_restarts=-1, max_task_retries=STARTS - 1, **need)
        job = replace(self.job, solutions=moved(self.job, relative))
        self._executors = [
            RemoteExecutor(f"executor {number}", actor.remote(job, self._share))
            for number in range((gpus or 1) * self._share)
        ]
        limit = LONGEST_INSTALLATION if self._install else LONGEST_PLACING
        placements = [executor.placed for executor in self._executors]
        placed, _ = ray().wait(placements, num_returns=len(placements), timeout=limit)
        late = [executor for executor in self._executors if executor.placed not in placed]
        for executor in late:
            self._remove(executor, f"its GPU is taken, or no core is free, for {limit:.0f} s")
        if started := [executor.pending for executor in self._executors]:
            ray().wait(started, num_returns=len(started))
        for executor in list(self._executors):
            if reason := self._admit(executor, restarted=False):
                self._remove(executor, reason)

    def _admit(self, executor: RemoteExecutor, restarted: bool) -> str:
        """Admit an executor that has started; return "", or the reason for which it cannot run.

        Raises:
            RuntimeError: The harness failed on the device.
        """
        try:
            ready: ExecutorReady = executor.word()
        except (Lost, UserError) as error:
            return str(error)
        kind = ready.device_info.kind
        first = self.kinds.get(kind, [ready])[0]
        if first.device_info.versions != ready.device_info.versions:
            return "has other versions of its packages"
        if restarted:
            known = self.cases(kind) if kind in self.kinds else {}
            if not known or any({*known[op]} - {*ready.cases.get(op, ())} for op in known):
                return "less of its memory is free than before, or it is another device"
        else:
            self.kinds[kind].append(ready)
        executor.kind, executor.node_id = kind, ready.node_id
        return ""

    def _remove(self, executor: RemoteExecutor, reason: str) -> None:
        """Remove an executor, and note the reason."""
        self._notes.append(f"{executor.name} takes no part: {reason}")
        self._executors.remove(executor)
        executor.kill()

    def _parts(self, kind: str, tasks: Iterable[Task]) -> Iterator[Task]:
        """Split tasks into parts of half an executor's share of the remaining cases.

        For example, for two executors and parts of 1 to 3 cases, ten cases become parts of 3, 2, 2,
        1, 1 and 1: the last parts are small, so that all devices end at about the same time.
        """
        (least, most), executors = SIZES[self.job.command], len(self.kinds[kind])
        tasks = list(tasks)
        remaining = sum(len(task.due) for task in tasks)
        for task in tasks:
            while task.due:
                half = math.ceil(remaining / (2 * executors))
                part, task = _split(task, max(least, min(half, most)))
                remaining -= len(part.due)
                yield part

    def _receive(self) -> Iterator[tuple[str, Answers]]:
        """Wait for the next message of an executor, and yield the answers or the user's message.

        Raises:
            UserError: No executor is left that could send a message.
        """
        pending = {executor.pending: executor for executor in self._executors if executor.pending}
        if not pending:
            raise UserError("no device is left for the other cases; repeat the command to continue")
        ready, _ = ray().wait(list(pending), timeout=POLL)
        for reference in ready:
            executor = pending[reference]
            yield from self._receive_answers(executor) if executor.task else self._readmit(executor)
        if not ready:
            yield from self._check_silence()

    def _check_silence(self) -> Iterator[tuple[str, Answers]]:
        """Kill busy executors that are silent for too long; if none is busy, remove lost ones.

        Ray reports a lost node to the tasks that run on it. A task that an executor gets after the
        end of its node waits until Ray has restarted the actor, so that it is cancelled.
        """
        now, busy = time.monotonic(), self.busy[0]
        alive = {node["NodeID"] for node in ray().nodes() if node["Alive"]}
        for executor in [executor for executor in self._executors if executor.pending]:
            if executor.task and executor.node_id not in alive:
                executor.cancel()
            elif executor.task and now - executor.heard > LONGEST_SILENCE:
                executor.interrupt()
            elif not busy and now - executor.heard > LONGEST_PLACING:
                yield from self._give_up(executor, f"it is not back after {LONGEST_PLACING:.0f} s")

    def _readmit(self, executor: RemoteExecutor) -> Iterator[tuple[str, Answers]]:
        """Admit a restarted executor, or remove it."""
        if reason := self._admit(executor, restarted=True):
            yield from self._give_up(executor, reason)

    def _give_up(self, executor: RemoteExecutor, reason: str) -> Iterator[tuple[str, Answers]]:
        self._remove(executor, reason)
        yield executor.kind, f"{executor.name} does not start again: {reason}"

    def _receive_answers(self, executor: RemoteExecutor) -> Iterator[tuple[str, Answers]]:
        """Yield an executor's answers to a case, or a message that the executor was lost."""
        try:
            message = executor.word()
        except Lost as lost:
            yield executor.kind, f"{executor.name} was lost: {lost}"
            if executor.task and executor.left:
                self._lost.append((executor, replace(executor.task, due=executor.left)))
            executor.start()
            return
        if message:
            answers, memory = message
            peak = self.memory[executor.kind]
            peak |= {holder: max(size, peak.get(holder, 0)) for holder, size in memory.items()}
            yield executor.kind, answers

    def _retry(self, lost_on: RemoteExecutor, task: Task) -> Iterator[tuple[str, Answers]]:
        """Run lost cases once more, one at a time, on another executor if there is one.

        Each solution runs a case by itself, so that no solution is blamed for another's crash.
        """
        kind = lost_on.kind
        for case, solutions in task.due.items():
            for name in solutions:
                single = replace(task, due={case: (name,)})
                executor = yield from self._free(kind, lost_on)
                executor.give(single)
                while executor.task:
                    yield from self._receive()
                if self._lost:
                    self._lost.clear()
                    executor = yield from self._free(kind, lost_on)
                    yield kind, executor.crashed(single, TWICE)

    def _free(
        self, kind: str, lost_on: RemoteExecutor
    ) -> Generator[tuple[str, Answers], None, RemoteExecutor]:
        """Return an idle executor, other than `lost_on` if there is one."""
        while True:
            free = [
                executor
                for executor in self._executors
                if executor.kind == kind and not executor.pending
            ]
            if not free:
                yield from self._receive()
                continue
            executor = min(free, key=lambda candidate: candidate is lost_on)
            executor.start()  # its process may have ended while it was idle, not because of a case
            while executor.pending and executor in self._executors:
                yield from self._receive()
            if executor in self._executors:
                return executor


def _split(task: Task, count: int) -> tuple[Task, Task]:
    """Split a task into its first `count` cases and the others."""
    due = iter(task.due.items())
    return replace(task, due=dict(islice(due, count))), replace(task, due=dict(due))


def _failure_of(error: Any) -> Exception:
    """Convert an error of Ray to the executor's own error, or to Lost if the actor has ended."""
    if not isinstance(error, ray().exceptions.RayTaskError):
        return Lost(_short(error))
    if isinstance(error.cause, UserError):
        return UserError(str(error.cause))
    return RuntimeError(f"the harness failed on a device:\n{error}")


def _short(error: BaseException) -> str:
    """Return the first and the last line of an error of Ray; its traceback is between them."""
    exceptions = ray().exceptions
    if isinstance(error, (exceptions.ActorUnavailableError, exceptions.TaskCancelledError)):
        return "its process or its node has ended"  # Ray's text is long
    first, *others = str(error).strip().split("\n")
    return " ".join([first.strip(), *(other.strip() for other in others[-1:])])


# --- the cluster ----------------------------------------------------------------------------------

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable that makes Ray bind to the loopback address only, on Linux too; otherwise each of
its processes listens on every interface. Ray reads it when it is imported."""
OWN = {LOOPBACK: "0", "RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
"""The variables of a cluster of this machine only: Ray kills no process to save memory, and gives
no process a lower priority while it is timed."""
TOKEN = "RAY_AUTH_MODE"
"""The variable that makes Ray send a token; without it, a cluster with an address gets none."""
QUICK = {"RAY_py_gcs_connect_timeout_s": "5", "RAY_NUM_REDIS_GET_RETRIES": "2"}
"""The variables that make Ray give up an unresponsive head after half a minute instead of five."""
LONGEST_ANSWER = 10.0
"""Seconds for the head's port to answer."""
TRAVELS = ("common", "contributors", "pyproject.toml")
"""The entries of the repository that are copied to each node."""


def connect(
    address: str | None, environment: Mapping[str, Any], resources: Mapping[str, Any]
) -> None:
    """Connect to a cluster, or start one that only this machine can reach.

    Args:
        address: HOST:PORT of the cluster's head; None to start one.
        environment: Ray's runtime environment of the actors.
        resources: The resources of a cluster that is started.

    Raises:
        UserError: There is no cluster at the address, or it has another version or token.
    """
    os.environ.update(QUICK)
    if address:
        _reach(address)
    else:
        os.environ.update(OWN | os.environ)
    try:
        ray().init(
            address=address or "local",
            runtime_env=dict(environment),
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level="ERROR",
            **resources,
        )
    except (ConnectionError, RuntimeError, ray().exceptions.RayError) as error:
        where, why = address or "this machine", " ".join(str(error).split())
        message = f"no connection to a Ray cluster at {where}: {why}"
        hint = "" if TOKEN in os.environ else f"; if it asks for a token, set {TOKEN}=token"
        raise UserError(message + hint) from None


def _reach(address: str) -> None:
    """Check that the head's port answers: Ray would retry for minutes and print many lines.

    Raises:
        UserError: Nothing listens on the port.
    """
    host, _, port = address.rpartition(":")
    if host in ("localhost", "127.0.0.1"):
        host = ray().util.get_node_ip_address()  # as Ray does
    at = address if address.startswith(host) else f"{address}, which Ray takes for {host}"
    try:
        socket.create_connection((host, int(port)), LONGEST_ANSWER).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"no Ray cluster at {at}: {why}") from None


def runtime_environment(install: bool) -> dict[str, Any]:
    """Return Ray's environment of the nodes: the project's files, and the packages to install."""
    excluded = [f"/{path.name}" for path in ROOT.iterdir() if path.name not in TRAVELS]
    files = {"working_dir": str(ROOT), "excludes": [*excluded, "__pycache__"]}
    if not install:
        return files
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return {**files, "pip": {"packages": _packages(groups, "run"), "pip_check": False}}


def _packages(groups: Mapping[str, Sequence[Any]], group: str) -> list[str]:
    """Return the packages of a dependency group and of the groups that it includes."""
    packages = []
    for entry in groups[group]:
        packages += [entry] if isinstance(entry, str) else _packages(groups, entry["include-group"])
    return packages


def ray() -> Any:
    """Return the module `ray`, which takes a second to import.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    import ray as module

    return module
