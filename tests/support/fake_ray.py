"""A stand-in for Ray: its actors live in this process, over executors that run nothing.

The executors answer at once, and are lost where a test says so.
"""

import contextlib
from collections import Counter
from types import SimpleNamespace
from unittest import mock

from common.engines import ray_engine
from common.engines.engine import CaseResult, Job, Started
from common.engines.ray_engine import RayEngine
from common.errors import UserError
from common.measure.machine import DeviceInfo
from common.paths import ROOT
from common.solutions import Solution
from common.verdicts import Verdict


class RayError(Exception):
    """What Ray raises where an actor has ended."""


class RayTaskError(RayError):
    """What Ray raises where an actor's method did."""

    def __init__(self, cause):
        super().__init__(f"Traceback: {cause}")
        self.cause = cause


class FakeRay:
    """The module; the executors that are not silent take turns."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    util = SimpleNamespace(scheduling_strategies=strategies)

    def __init__(self, executors):
        self.executors, self.left, self.turn, self.of = executors, list(executors), 0, {}

    def nodes(self):
        node = {"Alive": True, "Resources": {"GPU": 1}}
        return [node | {"NodeID": number} for number, _ in enumerate(self.executors)]

    def remote(self, actor):
        def made(*of):
            executor, one = self.left.pop(0), actor(*of)
            vars(one)["_executor"] = executor

            def begin(task):
                stream = one.run(task)
                self.of[stream] = executor
                return stream

            run = SimpleNamespace(remote=begin)
            return SimpleNamespace(executor=executor, run=SimpleNamespace(options=lambda **_: run))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=made))

    def wait(self, pending, num_returns=1, timeout=None):
        said = [each for each in pending if not self.of[each].silent]
        self.turn += 1
        if num_returns == 1 and said:
            said = [said[self.turn % len(said)]]
        return said, [each for each in pending if each not in said]

    def get(self, message):
        return message

    def kill(self, actor):
        actor.executor.ended = True

    def shutdown(self):
        pass


@contextlib.contextmanager
def fake_cluster(job, executors):
    """The engine over made-up executors."""
    ray = mock.patch.object(ray_engine, "ray", return_value=FakeRay(executors))
    with ray, mock.patch.object(RayEngine, "_connect"), RayEngine(job, None) as engine:
        yield engine


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
        self, name, loses=None, count=40, kind="A GPU", fault=None, away=None, silent=False, **info
    ):
        """A task raises `fault`, and a start `away`; one whose GPU another job has is `silent`."""
        self.name, self.loses, self.cases = name, loses or (lambda *_: False), cases(count)
        device = {"device": "cpu", "name": kind, "versions": {"torch": "2"}} | info
        self.device_info = DeviceInfo(node="here", uuid=name, **device)
        self.asked, self.ended, self.tasks, self.reasons = Counter(), False, [], []
        self.fault, self.away, self.silent = fault, away, silent

    @property
    def started(self):
        if self.away:
            raise self.away
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
        self.asked[solution, case] += 1
        if self.loses(self, solution, case):
            raise RayError("killed")
        return self.result(solution, case)

    def result(self, solution, case, verdict="PASSED", reason=""):
        """Both directions of a solution's answer."""
        both = ("forward", "backward")
        found = [Verdict(solution, "rope", case, each, verdict, reason) for each in both]
        return CaseResult.of(found)

    def crashed(self, task, reason):
        ((case, (solution,)),) = task.due.items()
        self.reasons.append(reason)
        return self.result(solution, case, "CRASHED", reason)


STAYS_AWAY = RayTaskError(UserError("it stays away"))


def all_of(count, verdict="PASSED"):
    """Return what `swept` finds where each solution has this verdict on each case."""
    return Counter({(s, f"c{n}", verdict): 1 for s in SOLUTIONS for n in range(count)})


def swept(executors, job=JOB):
    """Return the verdict of each solution and case, how often it came, and the lines."""
    found, lines = Counter(), []
    with fake_cluster(job, executors) as engine:
        for each in engine.run(engine.tasks()):
            if isinstance(each, str):
                lines.append(each)
            else:
                found[each.solution, each.case, each.verdicts[0].verdict] += 1
    return found, lines
