"""What a killed `grade --json` goes on from, and devices of one kind with unlike room."""

import json

from common import paths
from common.engines import benching
from common.engines.grading import Begins, Found, grade_all, part_of
from common.records import runs
from common.records.lines import Selection
from common.spec import DIRECTIONS
from tests.support import killed
from tests.support.executors import JOB, SOLUTIONS, FakeExecutor
from tests.support.fake_ray import FakeCluster
from tests.support.records import row

KINDS = ("A GPU", "Another GPU")


def graded(target, *kinds, count=3, **device_info):
    """The number of cases that were kept, and every verdict: kept or not, kind, solution, case."""
    executors = [FakeExecutor(kind, count=count, kind=kind, **device_info) for kind in kinds]
    events = list(grade_all(FakeCluster(JOB, executors), target))
    kept = [event.kept for event in events if isinstance(event, Begins)]
    found = [event for event in events if isinstance(event, Found)]
    assert all(isinstance(event, Begins | Found) for event in events)
    return kept, [(each.kept, each.kind, each.verdicts[0].case) for each in found]


def test_a_kind_that_has_left_the_cluster_keeps_its_verdicts(target):
    graded(target, *KINDS)
    kept, found = graded(target, KINDS[0])
    assert kept == [2 * 3 * len(SOLUTIONS)]
    assert {kind for _, kind, _ in found} == {"a-gpu", "another-gpu"}
    assert all(was for was, _, _ in found), "nothing is graded again"


def test_a_kind_that_has_joined_is_graded_beside_what_is_kept(target):
    graded(target, KINDS[0])
    kept, found = graded(target, *KINDS)
    assert kept == [3 * len(SOLUTIONS)]
    assert {kind for was, kind, _ in found if not was} == {"another-gpu"}
    again, _ = graded(target, *KINDS)
    assert again == [2 * 3 * len(SOLUTIONS)]


def test_other_versions_of_a_kind_begin_anew(target):
    graded(target, KINDS[0])
    kept, found = graded(target, KINDS[0], versions={"torch": "3"})
    assert kept == [0]
    assert len(found) == 3 * len(SOLUTIONS)
    assert b'"3"' in part_of(target).read_bytes()


def test_a_case_without_all_its_rows_is_done_again():
    whole = [row(case="whole", direction=direction) for direction in DIRECTIONS]
    rows = [*whole, row(case="half")]
    assert benching._complete(rows) == whole


def test_a_run_that_lacks_its_end_alone_gets_it(tmp_path, monkeypatch):
    """No device has anything left to do, so that none tells its memory."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 2)
    killed.bench(tmp_path)
    (path,) = runs.files(paths.RESULTS / "a-gpu")
    whole = path.read_bytes().splitlines(keepends=True)
    assert json.loads(whole[-1])["kind"] == "end"
    path.write_bytes(b"".join(whole[:-1]))
    killed.bench(tmp_path)
    again = path.read_bytes().splitlines(keepends=True)
    assert again[:-1] == whole[:-1] and json.loads(again[-1])["kind"] == "end"


def test_a_row_from_another_device_than_its_cases_first_says_so():
    run = benching.Recording(None, None, None, kept=[], skipped=set(), resumed=False)
    one, other = row(device="GPU-a"), row(device="GPU-b")
    assert run.noted(one) == one
    assert run.noted(row(device="GPU-b", case="c9")).disturbed == {}
    noted = run.noted(other)
    assert noted.device_state["elsewhere"] == "GPU-a"
    assert noted.disturbed == {"gpu": ["another device than the case's other rows"]}
    assert run.noted(row(device="GPU-a")).disturbed == {}
    failed = row(device="GPU-b", gpu={}, host={}, verdict="CRASHED")
    assert run.noted(failed) == failed, "it has no times"


def test_a_run_that_goes_on_on_another_device_says_so(tmp_path, monkeypatch):
    """Of one device that was interrupted amid a case, which writes each solution's rows at once."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 2)
    measured = benching.bench(killed.cluster(tmp_path, "bench"), Selection(), {})
    next(each for each in measured if isinstance(each, benching.Taken))
    measured.close()
    (path,) = (tmp_path / "results" / "a-gpu").glob("*[0-9a-f].jsonl")
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:3]).replace(b'"device":"a"', b'"device":"z"').replace(
        b'"device":"b"', b'"device":"z"'))  # fmt: skip
    rows = [each.row for each in benching.bench(killed.cluster(tmp_path, "bench"), Selection(), {})
            if isinstance(each, benching.Taken) and not each.kept]  # fmt: skip
    assert len(rows) == 4 * killed.COUNT - 2
    apart = {(row.solution, row.case) for row in rows if row.device_state.get("elsewhere")}
    assert apart == {("bob/rope", row.case) for row in rows if row.device_state.get("elsewhere")}
    assert len(apart) == 1
