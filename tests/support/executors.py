"""Executors that run nothing: they answer at once, and are lost where a test says so."""

from __future__ import annotations

from collections import Counter

from common.engines.engine import CaseResult, Job, Started
from common.errors import UserError
from common.measure.machine import DeviceInfo
from common.paths import ROOT
from common.solutions import Solution
from common.verdicts import Verdict
from tests.support.fake_ray import FakeCluster, RayError, RayTaskError

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
