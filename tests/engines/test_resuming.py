"""What a killed `grade --json` and a killed `bench` go on from."""

import json

import pytest

from common import paths
from common.engines.engine import CaseResult, Planned
from common.engines.grading import grade_all
from common.records import runs
from tests.support import killed
from tests.support.fake_ray import JOB, FakeCluster, FakeExecutor


def graded(target, **of):
    """Return the number of results that an earlier run's file has, and of those of this run."""
    events = list(grade_all(FakeCluster(JOB, [FakeExecutor("a", **of)]), target))
    results = [event for event in events if isinstance(event, CaseResult)]
    assert len({(each.solution, each.case) for each in results}) == len(results)
    assert events[0] == Planned(len(results)), "every case has a result"
    kept = sum(each.kept for each in results)
    return kept, len(results) - kept


@pytest.mark.parametrize(("before", "now", "kept", "new"), [
    ({}, {}, 6, 0),
    ({}, {"kind": "Another GPU"}, 0, 6),
    ({}, {"versions": {"torch": "3"}}, 0, 6),
    ({}, {"count": 2}, 4, 0),
    ({"count": 2}, {}, 4, 2),
], ids=str)  # fmt: skip
def test_grade_goes_on_from_the_verdicts_that_still_hold(target, before, now, kept, new):
    graded(target, **{"count": 3} | before)
    assert graded(target, **{"count": 3} | now) == (kept, new)


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
