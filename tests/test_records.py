"""What is written is read again, what is torn or foreign is said, and bench goes on rightly."""

import dataclasses
import json
import shutil

import pytest

from common import paths
from common.errors import UserError
from common.measure import rows
from common.records import runs
from common.records.runs import Record, Results, Run, Writer
from common.solutions import Solution, discover

RUN = Run("r1", "cpu", "a laptop", {"torch": "2"}, {"fla": "not installed"}, "op=all only=all")
ROW = Record(
    run="r1", solution="alice/rope", peer=False, op="rope", case="c1", track="core", ranked_by="gpu",
    twin=False, direction="forward", verdict="PASSED", reason="", error=0.5, bytes=8, flops=9,
    sources="s1", harness="h1", gpu={"solution": [1.5, 2.0], "eager": [3.0]}, host={},
)  # fmt: skip


def row(**fields):
    return dataclasses.replace(ROW, **fields)


def written(path, *rows, end=True):
    writer = Writer(path)
    writer.begin(RUN)
    writer.rows(rows)
    if end:
        writer.end(RUN.run)
    writer.close()
    return path


# --- the file -------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    rows = [ROW, row(direction="backward", verdict="TIMEOUT", reason="| ü \u2028 \n", error=None)]
    results = runs.read(written(tmp_path / "new" / "cpu.jsonl", *rows))
    assert (results.runs, results.rows, results.finished) == ([RUN], rows, {"r1"})
    assert not results.timed


def test_no_file_is_no_records(tmp_path):
    assert runs.read(tmp_path / "cpu.jsonl").rows == []
    assert runs.read_all(tmp_path) == []


def test_what_a_gpu_measured_comes_first(tmp_path):
    written(tmp_path / "cpu.jsonl", ROW)
    writer = Writer(tmp_path / "gpu.jsonl")
    writer.begin(dataclasses.replace(RUN, device="cuda"))
    writer.rows([ROW])
    writer.close()
    (tmp_path / "empty.jsonl").touch()
    assert [results.path.name for results in runs.read_all(tmp_path)] == [
        "gpu.jsonl",
        "cpu.jsonl",
    ]


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_line_cut_off_by_a_kill_is_dropped_and_written_over(tmp_path, capsys, kept):
    path = written(tmp_path / "cpu.jsonl", ROW, row(case="c2"), end=False)
    *whole, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole) + last[:kept])
    assert runs.read(path).rows == [ROW]
    (notice,) = capsys.readouterr().err.splitlines()
    assert "cpu.jsonl" in notice

    writer = Writer(path)
    writer.rows([row(case="c3")])
    writer.end("r1")
    writer.close()
    assert runs.read(path).rows == [ROW, row(case="c3")]
    assert runs.read(path).finished == {"r1"}
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"schema": 2, "kind": "end", "run": "r1"}),
        json.dumps({"schema": runs.SCHEMA, "kind": "verdict"}),
        json.dumps({"schema": runs.SCHEMA, "kind": "end"}),
        json.dumps({"schema": runs.SCHEMA, "kind": "row", "solution": "alice/rope"}),
        json.dumps({"schema": runs.SCHEMA, "kind": "run", "unheard": "of"}),
        json.dumps({"run": "r1"}),
        "[1]",
        "7",
        "",
        "{torn",
    ],
)
def test_a_line_that_is_no_record_is_a_fault_that_names_it(tmp_path, line):
    path = written(tmp_path / "cpu.jsonl", ROW, end=False)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError) as caught:
        runs.read(path)
    assert "line 3" in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_bytes_that_are_no_text_are_a_fault(tmp_path):
    path = written(tmp_path / "cpu.jsonl", ROW)
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(UserError):
        runs.read(path)


def test_latest_takes_the_last_row_of_each():
    again, other = row(run="r2", verdict="TIMEOUT"), row(direction="backward")
    results = Results(path=None, rows=[ROW, other, again])
    assert sorted(results.latest(), key=lambda r: r.direction) == [other, again]


def test_lines_from_before_a_field_was_there_still_read(tmp_path):
    path = written(tmp_path / "gpu.jsonl", ROW)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for name in ("device_state", "tier", "peak"):
            line.pop(name, None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = runs.read(path)
    assert (results.runs, results.rows) == ([RUN], [ROW])
    assert (results.rows[0].tier, results.rows[0].disturbed) == ("board", "")


def test_a_run_of_the_plots_leaves_the_board_as_it_was():
    """Even one over all solutions, whose cases are not the board's."""
    board, plot = dataclasses.replace(RUN, selection=""), dataclasses.replace(RUN, run="r2")
    drawn = row(run="r2", tier="plot", case="c2")
    same = row(run="r2", tier="plot", verdict="TIMEOUT")
    results = Results(None, [board, plot], [ROW, drawn, same], finished={"r1", "r2"})
    assert results.latest() == [ROW]
    assert results.latest("plot") == [drawn, same]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, ""),
        ({"throttled": [], "others": 0, "sm_mhz": [1980, 1980]}, ""),
        ({"throttled": ["power cap"]}, ""),
        ({"others": 1}, "shared with 1 other process"),
        ({"throttled": ["a", "b"], "others": 2}, "a, b, shared with 2 other processes"),
    ],
)
def test_a_row_says_what_disturbed_it(state, says):
    assert row(device_state=state).disturbed == says


# --- going on -------------------------------------------------------------------------------------

ALICE = Solution(runs.ROOT / "contributors" / "alice" / "rope.py", "rope")
DIGESTS = {ALICE: ("s1", "h1")}
FRESH = dataclasses.replace(RUN, run="r2")


def unfinished(fresh=FRESH, rows=(ROW,), finished=(), digests=DIGESTS, runs=(RUN,)):
    earlier = Results(None, runs=list(runs), rows=list(rows), finished=set(finished))
    return rows._unfinished(earlier, fresh, digests)


def test_an_interrupted_run_is_gone_on_with():
    assert unfinished() == RUN
    assert unfinished(rows=()) == RUN
    older = row(run="r0", sources="old")
    assert unfinished(rows=(older, ROW)) == RUN


@pytest.mark.parametrize(
    "changed",
    [
        {"finished": ["r1"]},
        {"runs": []},
        {"runs": [RUN, dataclasses.replace(RUN, run="r3")], "finished": ["r3"]},
        {"digests": {ALICE: ("s2", "h1")}},
        {"digests": {ALICE: ("s1", "h2")}},
        {"digests": {}},
        {"fresh": dataclasses.replace(FRESH, versions={"torch": "3"})},
        {"fresh": dataclasses.replace(FRESH, absent={})},
        {"fresh": dataclasses.replace(FRESH, selection="op=rope only=all")},
        {"fresh": dataclasses.replace(FRESH, device_name="another laptop")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_otherwise_a_new_one_starts(changed):
    assert unfinished(**changed) is None


PLAIN = '''"""plain torch"""
import torch

def rotate_half(x, *, interleaved=False):
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)
'''
CASES = 3


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Bench one plain solution into a folder of its own; with `kill`, interrupted after so many
    rows. Returns how many cases were kept, the rows of this time alone, and the file's records."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    source = tmp_path / "contributors" / "alice" / "rotate_half.py"
    source.parent.mkdir(parents=True)

    def run(text, kill=None):
        source.write_text(text)
        seen = []

        def see(record):
            seen.append(record)
            if len(seen) == kill:
                raise KeyboardInterrupt

        kept = None
        try:
            kept = rows.bench(discover(tmp_path / "contributors"), "cpu", "all", {}, see)
        except KeyboardInterrupt:
            assert kill
        return kept, seen, runs.read(paths.RESULTS / "cpu.jsonl")

    return run


def test_an_interrupted_bench_is_gone_on_with(run, capsys):
    """A kill cuts off the last line too, so that its case has one direction alone."""
    _, seen, results = run(PLAIN, kill=4)
    assert results.rows == seen
    assert not results.finished
    text = results.path.read_text()
    results.path.write_text(text[:-9])

    kept, again, results = run(PLAIN)
    assert kept == 1
    assert "dropped" in capsys.readouterr().err
    assert len(results.runs) == len(results.finished) == 1
    assert again[:2] == seen[:2], "the kept ones are told again, and not measured"
    assert not {r.case for r in again[2:]} & {r.case for r in seen[:2]}
    assert len(results.latest()) == 2 * CASES
    assert {r.verdict for r in results.rows} == {"PASSED"}

    _, seen, results = run(PLAIN + "# changed\n", kill=1)
    assert len(results.runs) == 2
    assert seen[0].run == results.runs[1].run
    assert seen[0].sources != results.rows[0].sources


def test_two_writers_do_not_write_into_one_another(tmp_path):
    first = Writer(tmp_path / "cpu.jsonl")
    with pytest.raises(UserError, match="another run is writing"):
        Writer(tmp_path / "cpu.jsonl")
    first.close()
    Writer(tmp_path / "cpu.jsonl").close()


@pytest.mark.parametrize("fields", [{"device_state": [1]}, {"device_state": "hot"}])
def test_a_state_that_the_board_could_not_read_is_a_fault(tmp_path, fields):
    path = written(tmp_path / "gpu.jsonl", row(**fields), end=False)
    with pytest.raises(UserError, match="line 2"):
        runs.read(path)


@pytest.mark.parametrize("change", ["append", "overwrite", "remove", "remove all", "replace"])
def test_what_another_writes_meanwhile_is_taken_back(tmp_path, change):
    """A solution can: it runs as the same user."""
    path = tmp_path / "results" / "cpu.jsonl"
    writer = Writer(path)
    writer.begin(RUN)
    writer.rows([ROW])
    before = path.read_text()
    forged = before.replace("PASSED", "FORGED") if change == "overwrite" else before + before
    if change in ("remove", "replace"):
        path.unlink()
    if change == "remove all":
        shutil.rmtree(path.parent)
    elif change != "remove":
        path.write_text(forged)
    with pytest.raises(UserError, match="changed while it was written to"):
        writer.end(RUN.run)
    assert path.read_text() == before
    path.write_text(forged)  # by one that has not ended yet
    writer.close()
    assert path.read_text() == before
    assert not runs.read(path).finished


@pytest.mark.parametrize("samples", [{"solution": []}, {"solution": [1.0]}, {"solution": 1}])
def test_samples_that_the_board_could_not_read_are_a_fault(tmp_path, samples):
    path = written(tmp_path / "gpu.jsonl", row(gpu=samples), end=False)
    with pytest.raises(UserError, match="line 2"):
        runs.read(path)
