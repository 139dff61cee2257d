"""What a killed `grade --json` goes on from, and runs that go on on another device."""

import json

import pytest

from common import paths
from common.engines import benching
from common.engines.engine import CaseResult, Planned
from common.engines.grading import grade_all
from common.records import runs
from common.records.lines import Selection
from tests.support import killed
from tests.support.fake_ray import JOB, SOLUTIONS, FakeCluster, FakeExecutor

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


def lines_of(folder):
    (path,) = runs.files(folder / "results" / "a-gpu")
    return path, path.read_bytes().splitlines(keepends=True)


def test_a_run_that_goes_on_on_another_device_says_so(tmp_path, monkeypatch):
    """It was interrupted amid a case, of which each solution's rows are written at once."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 2)
    measured = benching.bench(killed.cluster(tmp_path, "bench"), Selection(), {})
    next(each for each in measured if isinstance(each, CaseResult))
    measured.close()
    path, whole = lines_of(tmp_path)
    first = json.loads(whole[1])
    path.write_bytes(
        b"".join(whole[:3]).replace(f'"device":"{first["device"]}"'.encode(), b'"device":"z"')
    )
    results = list(benching.bench(killed.cluster(tmp_path, "bench"), Selection(), {}))
    rows = [row for each in results if isinstance(each, CaseResult) for row in each.rows]
    assert len(rows) == 2 * 2 * killed.COUNT, "two kept"
    apart = {(row.solution, row.case) for row in rows if row.device_state.get("elsewhere") == "z"}
    assert apart == {(name, first["case"]) for name in SOLUTIONS} - {
        (first["solution"], first["case"])
    }
    assert all(row.disturbed for row in rows if row.device_state.get("elsewhere"))


def test_a_run_that_lacks_only_its_end_gets_it(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 2)
    killed.bench(tmp_path)
    path, whole = lines_of(tmp_path)
    assert json.loads(whole[-1])["kind"] == "end"
    path.write_bytes(b"".join(whole[:-1]))
    killed.bench(tmp_path)
    again = path.read_bytes().splitlines(keepends=True)
    assert again[:-1] == whole[:-1] and json.loads(again[-1])["kind"] == "end"
