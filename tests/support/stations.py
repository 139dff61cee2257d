"""Stations that run nothing: they answer at once, and are lost where a test says so."""

from __future__ import annotations

import threading
from collections import Counter

from common.engines.engine import Fleet, Lost
from common.engines.units import (
    Finished,
    Job,
    Ready,
    Source,
    TooLarge,
    Verdicts,
    plan,
)
from common.engines.work import Work
from common.records.runs import Place
from tests.support.waiting import LONGEST

SOLUTIONS = ("ada/rope", "bob/rope")
JOB = Job(
    command="grade",
    device="cpu",
    sources=tuple(Source(f"contributors/{name}.py", "rope") for name in SOLUTIONS),
    tier="smoke",
)
ENDLESS = 50
"""More often than that no station is asked for a solution on a case."""


def cases(count):
    """The names of so many cases of one op."""
    return {"rope": tuple(f"c{number}" for number in range(count))}


class Station:
    """Answers each due solution and case, unless `loses` says that it is lost in it."""

    def __init__(
        self,
        name,
        loses=lambda station, solution, case: False,
        count=40,
        kind="A GPU",
        pace=None,
        **place,
    ):
        """The kind is `a-gpu`, or what `place` says."""
        self.name, self.loses, self.cases, self.pace = name, loses, cases(count), pace
        self.place = {"device": "cpu", "name": kind, "versions": {"torch": "2"}} | place
        self.starts, self.asked, self.closed = 0, Counter(), False
        self.units, self.starts_again = [], True
        self.too_large = None
        self.gate = threading.Event()
        self.gate.set()

    def start(self):
        self.starts += 1
        if self.starts > 1 and not self.starts_again:
            raise Lost("it stays away")
        place = Place(node="here", uuid=self.name, **self.place)
        return Ready(place, self.cases, pace=self.pace)

    def run(self, unit):
        self.units.append(unit)
        assert self.gate.wait(LONGEST)
        for case in unit.cases:
            for solution in sorted(unit.due(case)):
                if (solution, case) == self.too_large:
                    yield TooLarge(unit.op, case, "needs 9 GiB")
                else:
                    yield self.answer(unit, solution, case)
        yield Finished({"device": len(self.units)})

    def answer(self, unit, solution, case):
        if not unit.crashed:
            self.asked[solution, case] += 1
            assert self.asked[solution, case] <= ENDLESS, "a loop"
            if self.loses(self, solution, case):
                raise Lost("killed")
        verdict = "CRASHED" if unit.crashed else "PASSED"
        return Verdicts(
            tuple(
                {"solution": solution, "op": unit.op, "case": case, "direction": direction,
                 "verdict": verdict, "reason": unit.crashed, "error": None, "notes": ()}
                for direction in ("forward", "backward")
            )
        )  # fmt: skip

    def close(self):
        self.closed = True


def all_of(count, verdict="PASSED"):
    """Return what `swept` finds where each solution has this verdict on each case."""
    return Counter({(s, f"c{n}", verdict): 1 for s in SOLUTIONS for n in range(count)})


def takes_first(monkeypatch, word):
    """Have the station with this word in its name take the first unit; the others wait for that."""
    take, taken = Work.take, threading.Event()

    def take_in_turn(work, station):
        assert word in station or taken.wait(LONGEST)
        unit = take(work, station)
        taken.set()
        return unit

    monkeypatch.setattr(Work, "take", take_in_turn)


class Together:
    """A gate of several stations: each has a unit before any of them answers."""

    def __init__(self, stations):
        self.without, self.lock, self.all = len(stations), threading.Lock(), threading.Event()
        self.seen = threading.local()
        for each in stations:
            each.gate = self

    def wait(self, limit):
        if not hasattr(self.seen, "unit"):  # a station has a thread of its own
            self.seen.unit = True
            with self.lock:
                self.without -= 1
                if not self.without:
                    self.all.set()
        return self.all.wait(limit)


def swept(stations, count=40, job=JOB):
    """Return the verdict of each solution and case, how often it came, and the lines."""
    found, lines = Counter(), []
    with Fleet(job, stations) as fleet:
        units = {kind: plan(job, cases(count), fleet.sizes(kind), run=kind) for kind in fleet.kinds}
        for _, each in fleet.run(units):
            if isinstance(each, str):
                lines.append(each)
                continue
            for answer in each:
                if isinstance(answer, TooLarge):
                    found[answer.case, "TOO LARGE"] += 1
                else:
                    found[(*answer.of, answer.found[0]["verdict"])] += 1
    return found, lines
