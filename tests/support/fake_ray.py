"""A stand-in for Ray: its actors live in this process, over executors that run nothing.

The executors answer at once, and are lost where a test says so.
"""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace

import pytest

from common.engines import cluster, ray_engine
from common.engines.engine import CaseResult, Job, Started
from common.engines.ray_engine import RayEngine
from common.errors import UserError
from common.measure.machine import DeviceInfo
from common.paths import ROOT
from common.solutions import Solution
from common.verdicts import Verdict

LIMIT = 0.2
"""Seconds for an executor to begin."""
ENDLESS = 100
"""More often than that in a row nobody waits in vain."""


class RayError(Exception):
    """What Ray raises where an actor has ended."""


class RayTaskError(RayError):
    """What Ray raises where an actor's method did."""

    def __init__(self, cause):
        super().__init__(f"Traceback: {cause}")
        self.cause = cause


class Reference:
    """A call of an actor's method, which is carried out once its result is asked for."""

    def __init__(self, executor, call):
        self.executor, self.call = executor, call


class Stream(Reference):
    """A call of a generator; each of its values is a reference."""

    def __next__(self):
        value = next(self.call, StopIteration)
        if value is StopIteration:
            raise StopIteration
        return Reference(self.executor, lambda: value)


class Handle:
    """The handle of an actor."""

    def __init__(self, actor, executor):
        self.executor = executor
        self.start = self._method(lambda: Reference(executor, actor.start))
        run = self._method(lambda task: Stream(executor, actor.run(task)))
        self.run = SimpleNamespace(options=lambda **_: run)

    def _method(self, call):
        return SimpleNamespace(remote=call)


class FakeRay:
    """The module; the executors that say something take turns."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, ActorUnavailableError=()
    )

    def __init__(self, executors):
        self.executors, self.left, self.turn, self.silent = executors, list(executors), 0, 0

    def nodes(self):
        return [{"Alive": True, "Resources": {"GPU": 1}} for _ in self.executors]

    def remote(self, actor):
        def made(job, neighbours):
            executor, one = self.left.pop(0), actor(job, neighbours)
            vars(one)["_executor"] = executor
            return Handle(one, executor)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=made))

    def wait(self, pending, timeout=None):
        said = [each for each in pending if each.executor.says]
        self.turn += 1
        self.silent = 0 if said else self.silent + 1
        assert self.silent < ENDLESS, "it waits for ever"
        if said:
            starting = [each for each in said if not isinstance(each, Stream)]
            said = starting[:1] or [said[self.turn % len(said)]]
        else:
            time.sleep(LIMIT / 2)
        return said, [each for each in pending if each not in said]

    def get(self, reference):
        return reference.call()

    def kill(self, handle):
        handle.executor.ended = True

    def shutdown(self):
        pass


class FakeCluster(RayEngine):
    """The engine over made-up executors."""

    def __init__(self, job, executors):
        super().__init__(job, SimpleNamespace(connect=lambda: None, share=1, longest_placing=LIMIT))
        self._fake = FakeRay(executors)

    def __enter__(self):
        self._ray, ray_engine.ray = ray_engine.ray, lambda: self._fake
        return super().__enter__()

    def __exit__(self, *of):
        super().__exit__(*of)
        ray_engine.ray = self._ray


@pytest.fixture
def begun(monkeypatch):
    """What Ray is started with, in place of Ray."""
    asked = {}
    fake = SimpleNamespace(init=lambda **how: asked.update(how))
    monkeypatch.setattr(cluster, "ray", lambda: fake)
    for name in cluster.OWN | cluster.QUICK:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return asked


SOLUTIONS = ("ada/rope", "bob/rope")
JOB = Job(
    command="grade",
    device="cpu",
    solutions=tuple(Solution(ROOT / f"contributors/{name}.py", "rope") for name in SOLUTIONS),
    tier="smoke",
)


def cases(count):
    """The names of so many cases of one op."""
    return {"rope": tuple(f"c{number}" for number in range(count))}


class FakeExecutor:
    """Answers each due solution and case, unless `loses` says that it is lost in it."""

    def __init__(
        self,
        name,
        loses=lambda executor, solution, case: False,
        count=40,
        kind="A GPU",
        **device_info,
    ):
        """The kind is `a-gpu`, or what `device_info` says."""
        self.name, self.loses, self.cases = name, loses, cases(count)
        device = {"device": "cpu", "name": kind, "versions": {"torch": "2"}} | device_info
        self.device_info = DeviceInfo(node="here", uuid=name, **device)
        self.starts, self.asked, self.ended = 0, Counter(), False
        self.tasks, self.reasons, self.starts_again = [], [], True
        self.too_large = self.fault = None
        self.says = True
        """Whether it sends messages, as it does not where its node has ended."""

    @property
    def started(self):
        self.starts += 1
        if self.starts > 1 and not self.starts_again:
            raise RayTaskError(UserError("it stays away"))
        return Started(self.device_info, self.cases)

    def run(self, tasks):
        (task,) = tasks
        self.tasks.append(task)
        if self.fault:
            raise RayTaskError(self.fault)
        for case, solutions in task.due.items():
            for solution in solutions:
                yield self.answer(task, solution, case)

    def answer(self, task, solution, case):
        if (solution, case) == self.too_large:
            return CaseResult(kind=task.kind, op=task.op, case=case, too_large="needs 9 GiB")
        self.asked[solution, case] += 1
        if self.loses(self, solution, case):
            raise RayError("killed")
        return self.result(solution, case)

    def result(self, solution, case, verdict="PASSED", reason=""):
        """Both directions of a solution's answer."""
        both = ("forward", "backward")
        found = [Verdict(solution, "rope", case, each, verdict, reason) for each in both]
        memory = {"device": len(self.tasks)}
        return CaseResult.of(self.device_info.kind, found, memory=memory)

    def crashed(self, task, reason):
        ((case, (solution,)),) = task.due.items()
        self.reasons.append(reason)
        return self.result(solution, case, "CRASHED", reason)


def all_of(count, verdict="PASSED"):
    """Return what `swept` finds where each solution has this verdict on each case."""
    return Counter({(s, f"c{n}", verdict): 1 for s in SOLUTIONS for n in range(count)})


def swept(executors, job=JOB):
    """Return the verdict of each solution and case, how often it came, and the lines."""
    found, lines = Counter(), []
    with FakeCluster(job, executors) as engine:
        for each in engine.run([task for kind in engine.kinds for task in engine.tasks(kind)]):
            if isinstance(each, str):
                lines.append(each)
            elif each.too_large:
                found[each.case, "TOO LARGE"] += 1
            else:
                found[each.solution, each.case, each.verdicts[0].verdict] += 1
    return found, lines
