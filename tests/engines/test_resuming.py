"""What a killed `grade --json` and a killed `bench` go on from."""

import json

import pytest

from common import paths
from common.engines.engine import CaseResult, Planned
from common.engines.grading import grade_all
from common.records import runs
from tests.support import killed
from tests.support.fake_ray import JOB, FakeCluster, FakeExecutor

ONE, BOTH = ("A GPU",), ("A GPU", "Another GPU")


def graded(target, *kinds, count=3, **device_info):
    """Return the kind of each result of an earlier run, and of each result of this run."""
    executors = [FakeExecutor(kind, count=count, kind=kind, **device_info) for kind in kinds]
    events = list(grade_all(FakeCluster(JOB, executors), target))
    results = [event for event in events if isinstance(event, CaseResult)]
    assert len({(each.kind, each.solution, each.case) for each in results}) == len(results)
    assert events[0] == Planned(len(results)), "every case has a result"
    kept, new = ([each.kind for each in results if each.kept == kept] for kept in (True, False))
    return kept, new


@pytest.mark.parametrize(("before", "now", "kept", "new"), [
    ({"kinds": ONE}, {"kinds": ONE}, {"a-gpu"}, set()),
    ({"kinds": BOTH}, {"kinds": ONE}, {"a-gpu"}, set()),
    ({"kinds": ONE}, {"kinds": BOTH}, {"a-gpu"}, {"another-gpu"}),
    ({"kinds": ONE}, {"kinds": ONE, "versions": {"torch": "3"}}, set(), {"a-gpu"}),
    ({"kinds": ONE}, {"kinds": ONE, "count": 2}, {"a-gpu"}, set()),
    ({"kinds": ONE, "count": 2}, {"kinds": ONE}, {"a-gpu"}, {"a-gpu"}),
], ids=str)  # fmt: skip
def test_grade_goes_on_from_the_verdicts_that_still_hold(target, before, now, kept, new):
    graded(target, *before.pop("kinds"), **before)
    found = graded(target, *now.pop("kinds"), **now)
    assert tuple(map(set, found)) == (kept, new)


@pytest.mark.parametrize("kept", [3, -1])
def test_a_run_that_lacks_its_end_goes_on(tmp_path, monkeypatch, kept):
    """It was interrupted amid a case, or after its last row."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 2)
    killed.bench(tmp_path)
    (path,) = runs.files(tmp_path / "results" / "a-gpu")
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:kept]))
    killed.bench(tmp_path)
    again = path.read_bytes().splitlines(keepends=True)
    assert len(again) == len(whole) and again[:kept] == whole[:kept]
    keys = {
        (row["solution"], row["case"], row["direction"]) for row in map(json.loads, again[1:-1])
    }
    assert len(keys) == 2 * 2 * killed.COUNT
    assert json.loads(again[-1])["kind"] == "end"
