"""What a killed `grade --json` goes on from, and devices of one kind with unlike room."""

import json
import lzma

from common import paths
from common.engines.engine import Fleet
from common.engines.engine import cases as cases_of
from common.engines.grading import Begins, Found, grade, part_of
from common.measure import recording
from common.spec import DIRECTIONS
from tests.support import killed
from tests.support.records import row
from tests.support.stations import JOB, SOLUTIONS, Station, cases

KINDS = ("A GPU", "Another GPU")


def graded(target, *kinds, count=3, **place):
    """The number of cases that were kept, and every verdict: kept or not, kind, solution, case."""
    stations = [Station(kind, count=count, kind=kind, **place) for kind in kinds]
    events = list(grade(Fleet(JOB, stations), target))
    kept = [each.kept for each in events if isinstance(each, Begins)]
    found = [each for each in events if isinstance(each, Found)]
    assert all(isinstance(each, Begins | Found) for each in events)
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
    whole = [row(case="whole", direction=each) for each in DIRECTIONS]
    rows = [*whole, row(case="half")]
    assert recording._whole(rows) == whole


def test_a_run_that_lacks_its_end_alone_gets_it(tmp_path, monkeypatch):
    """No device has anything left to do, so that none tells its memory."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 2)
    killed.bench(tmp_path)
    (packed,) = paths.RESULTS.glob("*/*.samples.jsonl.xz")
    samples = packed.with_suffix("")
    path = samples.with_suffix("").with_suffix(".jsonl")
    whole = path.read_bytes().splitlines(keepends=True)
    assert json.loads(whole[-1])["kind"] == "end"
    path.write_bytes(b"".join(whole[:-1]))
    samples.write_bytes(lzma.decompress(packed.read_bytes()))
    packed.unlink()
    killed.bench(tmp_path)
    again = path.read_bytes().splitlines(keepends=True)
    assert again[:-1] == whole[:-1] and json.loads(again[-1])["kind"] == "end"


def test_devices_of_a_kind_take_the_cases_that_all_have_room_for():
    small, large = Station("small"), Station("large")
    large.cases = cases(4)
    small.cases = {"rope": ("c3", "c1")}
    with Fleet(JOB, [large, small]) as fleet:
        assert cases_of(fleet, "a-gpu") == {"rope": ("c1", "c3")}


def test_a_device_with_less_room_than_before_does_not_start_again():
    first, other = Station("a", lambda *_: True, count=4), Station("b", count=4)
    with Fleet(JOB, [first, other]) as fleet:
        first.cases = cases(2)
        assert not fleet._starts_again(first)
        assert first.closed, "it would keep its share of the memory"
        first.cases = cases(5)
        assert fleet._starts_again(first)
