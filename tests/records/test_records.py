"""The lines of a run are read as they were written; a torn or foreign line is reported."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from common.errors import UserError
from common.records import runs
from common.records.lines import SCHEMA, Estimate, Selection
from common.records.runs import Results, RunWriter
from common.spec import DIRECTIONS
from tests.support.records import NAME, ROW, RUN, row, written

# --- the file -------------------------------------------------------------------------------------


def test_what_is_written_is_read_in_the_order_of_time(tmp_path):
    assert runs.read(tmp_path / "cpu").rows == runs.read_all(tmp_path) == []
    rows = [ROW, row(direction="backward", verdict="TIMEOUT", reason="| ü \u2028 \n", error=None)]
    second, again = replace(RUN, run="r2"), row(run="r2")
    folder = tmp_path / "new" / "cpu"
    written(folder, again, run=second, name="20261121T082931Z-r2.jsonl")
    written(folder, *rows, name=NAME)
    results = runs.read(folder)
    assert (results.runs, results.rows) == ([RUN, second], [*rows, again])
    assert results.finished == {"r1", "r2"} and not results.timed
    assert results.latest() == [again, rows[1]]


def test_the_gpu_with_the_most_rows_comes_first_and_a_cpu_last(tmp_path):
    written(tmp_path / "cpu", ROW, row(case="c2"), row(case="c3"))
    for name, rows in (("few", [ROW]), ("many", [ROW, row(case="c2")])):
        written(tmp_path / name, *rows, run=replace(RUN, device="cuda"))
    (tmp_path / "none").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / NAME).touch()
    assert [results.path.name for results in runs.read_all(tmp_path)] == ["many", "few", "cpu"]


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_line_cut_off_by_a_kill_is_dropped_and_written_over(tmp_path, capsys, kept):
    path = written(tmp_path, ROW, row(case="c2"), end=False)
    *whole, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole) + last[:kept])
    assert runs.read(tmp_path).rows == [ROW]
    (notice,) = capsys.readouterr().err.splitlines()
    assert NAME in notice
    file = RunWriter(path)
    file.rows([row(case="c3")])
    file.end("r1")
    file.close()
    results = runs.read(tmp_path)
    assert (results.rows, results.finished) == ([ROW, row(case="c3")], {"r1"})
    assert not capsys.readouterr().err


LINE = json.loads(msgspec.json.encode(ROW))
TIMES = [1.0, 1.0, 1.0]
BOTH = {"solution": TIMES, "eager": TIMES}
MALFORMED = [
    {"schema": 1, "kind": "end", "run": "r1"}, {"schema": SCHEMA, "kind": "verdict"},
    {"schema": SCHEMA, "kind": "end", "run": "another"},
    LINE | {"schema": SCHEMA + 1, "unheard": "of"},
    LINE | {"gpu": {"solution": TIMES}}, LINE | {"gpu": BOTH}, LINE | {"host": {"eager": TIMES}},
    LINE | {"gpu": BOTH | {"copy": TIMES}, "host": {}, "ranked_by": "host"},
    LINE | {"direction": "sideways"},
]  # fmt: skip


@pytest.mark.parametrize("line", [*map(json.dumps, MALFORMED), "", "{torn", b"\xff\xfe"])
def test_a_line_that_is_no_record_is_a_fault_that_names_it(tmp_path, line):
    path = written(tmp_path, ROW, end=False)
    path.write_bytes(path.read_bytes() + (line if type(line) is bytes else line.encode()) + b"\n")
    with pytest.raises(UserError, match=r"line 3 is no record of schema 2.*git pull") as told:
        runs.read(tmp_path)
    assert str(path) in str(told.value) and len(str(told.value).splitlines()) == 1


def test_a_file_that_does_not_begin_with_its_run_is_a_fault(tmp_path):
    path = written(tmp_path, ROW)
    first, *rest = path.read_bytes().splitlines(keepends=True)
    for content, line in ((b"".join(rest), 1), (first + first, 2)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"line {line} .*begins with its run"):
            runs.read(tmp_path)


# --- which rows are shown -------------------------------------------------------------------------


def test_the_last_row_of_each_is_shown_in_the_order_of_the_cases():
    again, other = row(run="r2", verdict="TIMEOUT"), row(direction="backward")
    assert Results(None, rows=[ROW, other, again]).latest() == [again, other]
    sizes = {"small": 1, "also": 2, "middle": 2, "large": 3}
    cells = [(case, direction) for case in sizes for direction in DIRECTIONS]
    rows = [row(case=case, direction=direction, bytes=sizes[case]) for case, direction in cells]
    latest = Results(None, rows=rows[::-1]).latest()
    assert [(each.case, each.direction) for each in latest] == cells
    grown = row(case="small", bytes=4)  # its backward is as small as before
    assert Results(None, rows=[*rows, grown]).latest()[:2] == [grown, rows[1]]
    other = [row(solution="bob/rope", case="small", bytes=1), rows[0]]
    assert Results(None, rows=other).latest() == other, "in the order of time"


def test_a_case_that_a_run_over_all_does_not_name_is_shown_no_more():
    """A row from after that run is; a run of one's own solutions may be of an older checkout."""
    rows = [row(case="a"), row(case="b"), row(case="b", op="other"), row(run="r3", case="c")]

    def shown(**selection):
        second = replace(RUN, run="r2", selection=Selection(**selection), cases={"rope": ["a"]})
        return Results(None, [RUN, second, replace(RUN, run="r3")], rows).latest()

    assert shown() == [rows[2], rows[0], rows[3]]
    assert len(shown(only="alice")) == len(shown(tier="plot")) == 4


def test_a_row_of_the_plots_is_not_on_the_board():
    drawn, same = row(tier="plot", case="c2"), row(tier="plot", verdict="TIMEOUT")
    results = Results(None, [RUN], [ROW, drawn, same])
    assert results.latest() == [ROW]
    assert results.latest("plot") == [same, drawn]


# --- what a row says ------------------------------------------------------------------------------


def test_a_row_says_what_disturbed_it_and_readings_of_earlier_records_do_not_matter(tmp_path):
    state = {"throttled": ["power cap"], "sm_mhz": [1980, 1980], "slow_probes": 3}
    written(tmp_path, row(device_state=state))
    (found,) = runs.read(tmp_path).rows
    assert found.disturbed == {"gpu"} and not row().disturbed


def test_summaries_hold_the_median_its_interval_and_the_quartiles():
    found = Estimate.of([10.0 + i % 7 for i in range(50)])
    assert found.quartiles[0] < found.low < found.value < found.high < found.quartiles[1]
    assert Estimate.of([3.0] * 9) == Estimate(3.0, 3.0, 3.0, (3.0, 3.0))
    read = msgspec.json.decode(b"[[1.0,0.9,1.1],[1.0,0.9,1.1,[0.8,1.2]]]", type=list[Estimate])
    assert read == [Estimate(1.0, 0.9, 1.1), Estimate(1.0, 0.9, 1.1, (0.8, 1.2))]
