"""Several devices, of this machine or of a cluster: an executor is an actor of Ray on each.

Ray places the actors, brings them the project's files, and starts a lost one again. The driver
gives each actor a task at a time and takes its answers case by case. A case that was lost goes once
more afterwards, elsewhere and alone; lost again, it is CRASHED.
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
"""The fewest and the most cases of a task; a timed one's are graded before they are timed."""
TWICE = "its harness ended twice, the second time with this case alone"
"""The reason of CRASHED."""
SUSPECTS = 16
"""The cases of a lost task, from the first unfinished one on, that may have been under way."""
STARTS = 3
"""How often Ray has an actor start its executor before that counts as a failure."""
LONGEST_PLACING = 120.0
"""Seconds in which Ray finds a GPU for an actor; otherwise another job has it, or it is gone."""
LONGEST_INSTALLATION = 1800.0
"""The same where the nodes install the packages first, for which an actor waits too."""
LONGEST_SILENCE = 3600.0
"""Seconds without an answer after which an executor at work is lost: its GPU's driver may hang."""
LONGEST_END = 20.0
"""Seconds in which an executor ends its workers."""
POLL = 10.0
"""Seconds between two looks at how long executors have been silent."""

# --- an actor, on a node --------------------------------------------------------------------------


class Actor:
    """An executor on a GPU of a node, or on some of its cores."""

    def __init__(self, job: Job, share: int) -> None:
        """Start nothing yet: of an exception here Ray tells that the actor died.

        The job's solutions have the paths of `relative`.
        """
        self._job, self._share = replace(job, solutions=moved(job, ROOT.joinpath)), share

    def start(self) -> ExecutorReady:
        """Return the executor's device and its cases.

        Raises:
            UserError: It cannot start; the user can mend the reason.
        """
        return self._executor.ready()

    def run(self, task: Task) -> Iterator[tuple[list[Answer], dict[str, int]]]:
        """Yield the answers to each case, once all are there, and the executor's memory."""
        for answers in by_case(self._executor.run([task]), task):
            yield answers, self._executor.memory

    def crashed(self, task: Task, reason: str) -> list[Answer]:
        """Return CRASHED for what is due, and run nothing."""
        return list(self._executor.crashed(task, reason))

    def close(self) -> None:
        """End the executor's workers, unless Ray has just started this actor again."""
        if executor := vars(self).get("_executor"):
            executor.close()

    @functools.cached_property
    def _executor(self) -> Executor:
        """The executor, started at first use: Ray may have started this actor again."""
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
        here = ray().get_runtime_context().get_node_id()
        (node,) = (each["Resources"] for each in ray().nodes() if each["NodeID"] == here)
        self._cores = own_cores(int(node.get("GPU", 1)) * self._share)
        if self._job.device == "cpu":
            os.environ[VISIBLE] = ""
        return Executor(self._job)


def moved(job: Job, path: Callable[[Path], Path]) -> tuple[Solution, ...]:
    """Return the job's solutions at other paths."""
    return tuple(replace(solution, path=path(solution.path)) for solution in job.solutions)


def relative(path: Path) -> Path:
    """Return a path relative to the repository, of which each node has a copy of its own."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def by_case(answers: Iterable[Answer], task: Task) -> Iterator[list[Answer]]:
    """Yield the answers to each case once all are there; where it did not fit, at the end."""
    waiting: dict[str, dict[str | None, Answer]] = defaultdict(dict)
    for answer in answers:
        solution, case = answer.of
        waiting[case][solution] = answer
        if waiting[case].keys() == {*task.due[case]}:
            yield [*waiting.pop(case).values()]
    for found in waiting.values():
        yield [*found.values()]


def own_cores(executors: int) -> socket.socket | None:
    """Keep this process to cores that no other of a node's executors has.

    Return the claim, a name that the kernel frees once this process ends.
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
    """Return the cores of each executor: neighbours, of which no other executor has any.

    A process that compiles then takes no core from another executor's clock. Where there are fewer
    than two for each, all share all.
    """
    each = len(cores) // executors
    if each < 2:
        return [cores] * executors
    return [cores[i * each : (i + 1) * each] for i in range(executors)]


def _leave_the_project() -> None:
    """Have temporary files beside the project, since solutions may write where they are.

    Ray unpacks the project beneath the folder of temporary files; see `sandbox/landlock.py`.
    """
    folder = Path(tempfile.gettempdir(), f"triton-study-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


# --- the driver -----------------------------------------------------------------------------------


class Lost(Exception):
    """An actor's process or node has ended; the text says how."""


class RemoteExecutor:
    """The driver's hold on one actor: it starts, has a task, or waits for one."""

    def __init__(self, name: str, actor: Any) -> None:
        """Have the actor's executor start."""
        self.name, self._actor = name, actor
        self.kind = ""
        """The kind of its device, once that is known."""
        self.pending: Any = None
        """What Ray will have an answer to; None where it waits for a task."""
        self.placed = actor.__ray_ready__.remote()
        self.start()

    def start(self) -> None:
        """Have the executor start: once Ray has started the actor again, where that was lost."""
        self.task: Task | None = None
        self._hears(self._actor.start.remote())

    def give(self, task: Task) -> None:
        """Give a task to an executor that waits for one."""
        self.task, self.left = task, dict(task.due)
        run = self._actor.run.options(num_returns="streaming", max_task_retries=0)
        self._hears(run.remote(task))

    def word(self) -> Any:
        """Return what the executor says: Ready, the answers to a case, or None at a task's end.

        Raises:
            Lost: The actor or its node has ended.
            UserError: The user can mend the reason.
            RuntimeError: The harness failed there.
        """
        try:
            found = ray().get(next(self.pending) if self.task else self.pending)
        except StopIteration:
            found = None
        except ray().exceptions.RayError as error:
            raise _failure_of(error) from None
        if isinstance(found, tuple):
            for answer in found[0]:
                self.left.pop(answer.of[1], None)
            self.heard = time.monotonic()
        else:
            self.task = self.pending = None
        return found

    def crashed(self, task: Task, reason: str) -> list[Answer]:
        """Return CRASHED for what is due; see `word`."""
        try:
            crasheds: list[Answer] = ray().get(self._actor.crashed.remote(task, reason))
            return crasheds
        except ray().exceptions.RayError as error:
            raise _failure_of(error) from None

    def interrupt(self) -> None:
        """Kill the actor, which Ray then starts again."""
        ray().kill(self._actor, no_restart=False)

    def close(self) -> Any:
        """Have an executor that waits for a task end its workers; return Ray's reference."""
        return self._actor.close.remote()

    def kill(self) -> None:
        """End the actor for good."""
        ray().kill(self._actor)

    def _hears(self, pending: Any) -> None:
        self.pending, self.heard = pending, time.monotonic()


class RayEngine(Engine):
    """An executor on each GPU of a cluster, or several that share this machine."""

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
            address: HOST:PORT of the cluster's head; None for a cluster of this machine alone,
                which only it can reach.
            install: Whether each node installs the packages of the group `run` first.
            gpus: The GPUs of a cluster of this machine alone.
            share: The executors that share each GPU or, without one, this machine's cores.
        """
        super().__init__(job)
        self._address, self._install, self._gpus, self._share = address, install, gpus, share
        self._executors: list[RemoteExecutor] = []
        self._lost: list[tuple[RemoteExecutor, Task]] = []

    def __enter__(self) -> RayEngine:
        """Connect, and start an executor on each GPU.

        Raises:
            UserError: There is no cluster, no GPU in it, or no executor starts.
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
        """The executors that are at work, and all that are left."""
        return sum(executor.task is not None for executor in self._executors), len(self._executors)

    def run(self, tasks: Mapping[str, Sequence[Task]]) -> Iterator[tuple[str, Answers]]:
        """Yield the answers to each case once, with the kind of device.

        Raises:
            UserError: No executor of a kind is left.
        """
        waiting = {kind: deque(self._parts(kind, each)) for kind, each in tasks.items()}
        lost: list[tuple[RemoteExecutor, Task]] = []
        while any(waiting.values()) or self.busy[0]:
            for executor in self._executors:
                if not executor.pending and (mine := waiting.get(executor.kind)):
                    executor.give(mine.popleft())
            yield from self._hear()
            while self._lost:
                executor, task = self._lost.pop()
                suspects, others = _split(task, SUSPECTS)
                lost.append((executor, suspects))
                if others.due:
                    waiting[executor.kind].appendleft(others)
        for executor, task in lost:
            yield from self._again(executor, task)

    def _connect(self) -> None:
        """Connect to the cluster, or start one of this machine alone."""
        here: dict[str, Any] = {}
        if self._address is None:
            here = {"num_cpus": (self._gpus or 1) * self._share, "num_gpus": self._gpus}
        connect(self._address, runtime_environment(self._install), here)

    def _place(self) -> None:
        """Start an actor for each executor, and wait for those that Ray finds a place for.

        In the main thread, where Ctrl-C ends it.

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
        every = [executor.placed for executor in self._executors]
        placed, _ = ray().wait(every, num_returns=len(every), timeout=limit)
        late = [executor for executor in self._executors if executor.placed not in placed]
        for executor in late:
            self._leave(executor, f"its GPU is taken, or no core is free, for {limit:.0f} s")
        if started := [executor.pending for executor in self._executors]:
            ray().wait(started, num_returns=len(started))
        for executor in list(self._executors):
            if reason := self._admit(executor, begun=False):
                self._leave(executor, reason)

    def _admit(self, executor: RemoteExecutor, begun: bool) -> str:
        """Count on an executor that has started; otherwise return the reason.

        Raises:
            RuntimeError: The harness failed there.
        """
        try:
            ready: ExecutorReady = executor.word()
        except (Lost, UserError) as error:
            return str(error)
        kind = ready.device_info.kind
        first = self.kinds.get(kind, [ready])[0]
        if first.device_info.versions != ready.device_info.versions:
            return "has other versions of its packages"
        if begun:
            known = self.cases(kind) if kind in self.kinds else {}
            if not known or any({*known[op]} - {*ready.cases.get(op, ())} for op in known):
                return "less of its memory is free than before, or it is another device"
        else:
            self.kinds[kind].append(ready)
        executor.kind = kind
        return ""

    def _leave(self, executor: RemoteExecutor, reason: str) -> None:
        """Count no longer on an executor."""
        self._notes.append(f"{executor.name} takes no part: {reason}")
        self._executors.remove(executor)
        executor.kill()

    def _parts(self, kind: str, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield tasks in parts: half of an executor's share of the rest each.

        For two executors, tasks of 1 to 3 of ten cases have the sizes 3, 2, 2, 1, 1 and 1: the last
        ones are small, so that all devices end at about the same time.
        """
        (least, most), executors = SIZES[self.job.command], len(self.kinds[kind])
        tasks = list(tasks)
        rest = sum(len(task.due) for task in tasks)
        for task in tasks:
            while task.due:
                half = math.ceil(rest / (2 * executors))
                part, task = _split(task, max(least, min(half, most)))
                rest -= len(part.due)
                yield part

    def _hear(self) -> Iterator[tuple[str, Answers]]:
        """Wait for the next word of any executor, and yield what is for the caller.

        Raises:
            UserError: No executor is left that could say anything.
        """
        pending = {executor.pending: executor for executor in self._executors if executor.pending}
        if not pending:
            raise UserError("no device is left for the other cases; the same command goes on")
        found, _ = ray().wait(list(pending), timeout=POLL)
        for each in found:
            executor = pending[each]
            yield from self._answered(executor) if executor.task else self._started(executor)
        if not found:
            yield from self._silent()

    def _silent(self) -> Iterator[tuple[str, Answers]]:
        """End what is silent for too long: executors at work, or if there is none, lost ones."""
        now, busy = time.monotonic(), self.busy[0]
        for executor in [executor for executor in self._executors if executor.pending]:
            if executor.task and now - executor.heard > LONGEST_SILENCE:
                executor.interrupt()
            elif not busy and now - executor.heard > LONGEST_PLACING:
                yield from self._gone(executor, f"it is not back after {LONGEST_PLACING:.0f} s")

    def _started(self, executor: RemoteExecutor) -> Iterator[tuple[str, Answers]]:
        """Count on a lost executor again, or no longer."""
        if reason := self._admit(executor, begun=True):
            yield from self._gone(executor, reason)

    def _gone(self, executor: RemoteExecutor, reason: str) -> Iterator[tuple[str, Answers]]:
        self._leave(executor, reason)
        yield executor.kind, f"{executor.name} does not start again: {reason}"

    def _answered(self, executor: RemoteExecutor) -> Iterator[tuple[str, Answers]]:
        """Yield an executor's answers to a case, or that it was lost."""
        try:
            found = executor.word()
        except Lost as lost:
            yield executor.kind, f"{executor.name} was lost: {lost}"
            if executor.task and executor.left:
                self._lost.append((executor, replace(executor.task, due=executor.left)))
            executor.start()
            return
        if found:
            answers, memory = found
            most = self.memory[executor.kind]
            most |= {name: max(size, most.get(name, 0)) for name, size in memory.items()}
            yield executor.kind, answers

    def _again(self, lost_on: RemoteExecutor, task: Task) -> Iterator[tuple[str, Answers]]:
        """Do lost cases once more, elsewhere if there is another executor, with nothing beside.

        Each solution has the case alone, so that none answers for another.
        """
        kind = lost_on.kind
        for case, solutions in task.due.items():
            for name in solutions:
                one = replace(task, due={case: (name,)})
                executor = yield from self._free(kind, lost_on)
                executor.give(one)
                while executor.task:
                    yield from self._hear()
                if self._lost:
                    self._lost.clear()
                    executor = yield from self._free(kind, lost_on)
                    yield kind, executor.crashed(one, TWICE)

    def _free(
        self, kind: str, lost_on: RemoteExecutor
    ) -> Generator[tuple[str, Answers], None, RemoteExecutor]:
        """Return an executor that waits for a task, another one than `lost_on` if there is any."""
        while True:
            free = [
                executor
                for executor in self._executors
                if executor.kind == kind and not executor.pending
            ]
            if not free:
                yield from self._hear()
                continue
            executor = min(free, key=lambda each: each is lost_on)
            executor.start()  # it may have ended while it waited, through no case
            while executor.pending and executor in self._executors:
                yield from self._hear()
            if executor in self._executors:
                return executor


def _split(task: Task, count: int) -> tuple[Task, Task]:
    """Return the first cases of a task, and the others."""
    due = iter(task.due.items())
    return replace(task, due=dict(islice(due, count))), replace(task, due=dict(due))


def _failure_of(error: Any) -> Exception:
    """Return what an error of Ray's means: the executor's own, or that its actor has ended."""
    if not isinstance(error, ray().exceptions.RayTaskError):
        return Lost(_short(error))
    if isinstance(error.cause, UserError):
        return UserError(str(error.cause))
    return RuntimeError(f"the harness failed on a device:\n{error}")


def _short(error: BaseException) -> str:
    """Return the first and the last line of an error of Ray's, between which its traceback is."""
    if isinstance(error, ray().exceptions.ActorUnavailableError):  # in many words
        return "its process or its node has ended"
    first, *others = str(error).strip().split("\n")
    return " ".join([first.strip(), *(other.strip() for other in others[-1:])])


# --- the cluster ----------------------------------------------------------------------------------

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable by which Ray binds to the loopback address alone, on Linux too; otherwise each of
its processes listens on every interface. It is read when Ray is imported."""
OWN = {LOOPBACK: "0", "RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
"""The variables of a cluster of this machine alone: Ray kills nobody for memory, and gives no
process a lower priority while it is timed."""
TOKEN = "RAY_AUTH_MODE"
"""The variable by which Ray sends a token; without it, none to a cluster that has an address."""
QUICK = {"RAY_py_gcs_connect_timeout_s": "5", "RAY_NUM_REDIS_GET_RETRIES": "2"}
"""The variables by which Ray gives up a head that does not answer after half a minute, not five."""
LONGEST_ANSWER = 10.0
"""Seconds in which the head's port must answer."""
TRAVELS = ("common", "contributors", "pyproject.toml")
"""The entries of the repository that a node needs."""


def connect(address: str | None, environment: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Connect to a cluster, or start one that only this machine can reach.

    Args:
        address: HOST:PORT of the cluster's head; None to start one.
        environment: Ray's runtime environment of the actors.
        here: The resources of a cluster that is started.

    Raises:
        UserError: There is none at the address, or it has another version or token.
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
            **here,
        )
    except (ConnectionError, RuntimeError, ray().exceptions.RayError) as error:
        where, why = address or "this machine", " ".join(str(error).split())
        message = f"no connection to a Ray cluster at {where}: {why}"
        hint = "" if TOKEN in os.environ else f"; if it asks for a token, set {TOKEN}=token"
        raise UserError(message + hint) from None


def _reach(address: str) -> None:
    """Connect to the head's port, and leave it: Ray itself would try for minutes, in many lines.

    Raises:
        UserError: Nothing listens there.
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
    """Return what each node gets: the project's files, and packages if they are to be installed."""
    excluded = [f"/{path.name}" for path in ROOT.iterdir() if path.name not in TRAVELS]
    files = {"working_dir": str(ROOT), "excludes": [*excluded, "__pycache__"]}
    if not install:
        return files
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return {**files, "pip": {"packages": _packages(groups, "run"), "pip_check": False}}


def _packages(groups: Mapping[str, Sequence[Any]], group: str) -> list[str]:
    """Return the packages of a dependency group, those of the groups that it includes too."""
    packages = []
    for each in groups[group]:
        packages += [each] if isinstance(each, str) else _packages(groups, each["include-group"])
    return packages


def ray() -> Any:
    """Return the module, which takes a second to import.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    import ray as found

    return found
