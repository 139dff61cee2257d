"""Devices of one kind beside each other: which one is apart, and what its rows say."""

import pytest

from common import paths
from common.engines import benching, paces
from common.records.lines import Selection
from tests.support import killed
from tests.support.records import row
from tests.support.stations import Together


@pytest.mark.parametrize(
    ("found", "apart"),
    [
        ({}, {}),
        ({"a": 100.0}, {}),
        ({"a": 100.0, "b": 104.0}, {}),
        ({"a": 120.0, "b": 100.0}, {"a": 1.2}),
        ({"a": 100.0, "b": 101.0, "c": 110.0, "d": 99.0}, {"c": 1.1}),
        ({"a": 100.0, "b": 101.0, "c": 90.0}, {"c": 0.9}),
    ],
)
def test_a_device_far_from_the_kinds_median_is_apart(found, apart):
    assert paces.outliers(found) == apart


def test_a_row_says_that_its_device_is_apart():
    one = row(device="GPU-a", device_state={"others": 0})
    assert benching._noted(one, {"GPU-b": 1.2}, {}) == one
    noted = benching._noted(one, {"GPU-a": 1.2}, {})
    assert noted.device_state == {"others": 0, "pace": 1.2}
    assert noted.disturbed == {"gpu": ["a device where eager takes 1.20 of its kind's time"]}
    assert one.disturbed == {}


def test_a_row_without_times_has_no_pace():
    failed = row(device="GPU-a", gpu={}, host={}, verdict="CRASHED")
    assert benching._noted(failed, {"GPU-a": 1.2}, {}) == failed


def test_a_row_from_another_device_than_its_cases_first_says_so():
    first = {}
    one, other = row(device="GPU-a"), row(device="GPU-b")
    assert benching._noted(one, {}, first) == one
    assert benching._noted(row(device="GPU-b", case="c9"), {}, first).disturbed == {}
    noted = benching._noted(other, {}, first)
    assert noted.device_state["elsewhere"] == "GPU-a"
    assert noted.disturbed == {"gpu": ["another device than the case's other rows"]}
    assert benching._noted(row(device="GPU-a"), {}, first).disturbed == {}


def test_a_run_that_goes_on_on_another_device_says_so(tmp_path, monkeypatch):
    """Of one device that was interrupted amid a case, which writes each solution's rows at once."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 2)
    fleet = killed.fleet(tmp_path, "bench")
    measured = benching.bench(fleet, Selection(), {})
    next(each for each in measured if isinstance(each, benching.Taken))
    measured.close()
    (path,) = (tmp_path / "results" / "a-gpu").glob("*[0-9a-f].jsonl")
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:3]).replace(b'"device":"a"', b'"device":"z"').replace(
        b'"device":"b"', b'"device":"z"'))  # fmt: skip
    rows = [each.row for each in benching.bench(killed.fleet(tmp_path, "bench"), Selection(), {})
            if isinstance(each, benching.Taken)]  # fmt: skip
    assert len(rows) == 4 * killed.COUNT - 2
    apart = {(each.solution, each.case) for each in rows if each.device_state.get("elsewhere")}
    assert apart == {("bob/rope", each.case) for each in rows if each.device_state.get("elsewhere")}
    assert len(apart) == 1


def test_the_record_of_a_device_apart_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 6)
    fleet = killed.fleet(tmp_path, "bench")
    Together(fleet._stations)
    for station, pace in zip(fleet._stations, (100.0, 120.0), strict=True):
        station.pace = pace
    rows = [each.row for each in benching.bench(fleet, Selection(), {})
            if isinstance(each, benching.Taken)]  # fmt: skip
    assert len(rows) == 4 * killed.COUNT
    assert all(each.device_state.get("pace") == {"b": 1.2}.get(each.device) for each in rows)
    assert {each.device for each in rows} == {"a", "b"}
