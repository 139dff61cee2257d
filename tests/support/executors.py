"""Stations that run nothing: they answer at once, and are lost where a test says so."""

from __future__ import annotations

from collections import Counter

from common.engines.engine import ExecutorReady, Job, TooLargeAnswer, VerdictsAnswer
from common.errors import UserError
from common.paths import ROOT
from common.records.runs import DeviceInfo
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
        self.device_info = {"device": "cpu", "name": kind, "versions": {"torch": "2"}} | device_info
        self.starts, self.asked, self.ended = 0, Counter(), False
        self.tasks, self.reasons, self.starts_again = [], [], True
        self.too_large = self.fault = None
        self.says = self.alive = True

    def start(self):
        self.starts += 1
        if self.starts > 1 and not self.starts_again:
            raise RayTaskError(UserError("it stays away"))
        return ExecutorReady(
            DeviceInfo(node="here", uuid=self.name, **self.device_info),
            self.cases,
            node_id=self.name,
        )

    def run(self, task):
        self.tasks.append(task)
        if self.fault:
            raise RayTaskError(self.fault)
        for case, solutions in task.due.items():
            answers = [self.answer(task, solution, case) for solution in solutions]
            yield answers, {"device": len(self.tasks)}

    def answer(self, task, solution, case):
        if (solution, case) == self.too_large:
            return TooLargeAnswer(task.op, case, "needs 9 GiB")
        self.asked[solution, case] += 1
        if self.loses(self, solution, case):
            raise RayError("killed")
        return verdicts(solution, case)

    def crashed(self, task, reason):
        ((case, (solution,)),) = task.due.items()
        self.reasons.append(reason)
        return [verdicts(solution, case, "CRASHED", reason)]

    def close(self):
        pass

    def kill(self, for_good):
        self.ended = for_good


def verdicts(solution, case, verdict="PASSED", reason=""):
    """Both directions of a solution's answer."""
    both = ("forward", "backward")
    return VerdictsAnswer(
        tuple(Verdict(solution, "rope", case, each, verdict, reason) for each in both)
    )


def all_of(count, verdict="PASSED"):
    """Return what `swept` finds where each solution has this verdict on each case."""
    return Counter({(s, f"c{n}", verdict): 1 for s in SOLUTIONS for n in range(count)})


def swept(executors, job=JOB):
    """Return the verdict of each solution and case, how often it came, and the lines."""
    found, lines = Counter(), []
    with FakeCluster(job, executors) as cluster:
        for _, each in cluster.run({kind: cluster.tasks(kind, run=kind) for kind in cluster.kinds}):
            if isinstance(each, str):
                lines.append(each)
                continue
            for answer in each:
                if isinstance(answer, TooLargeAnswer):
                    found[answer.case, "TOO LARGE"] += 1
                else:
                    found[(*answer.of, answer.found[0].verdict)] += 1
    return found, lines
