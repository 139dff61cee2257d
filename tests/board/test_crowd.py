"""A crowd is ranked whole, and its best are drawn, within the time and the memory of a laptop."""

import json
import subprocess
import sys
from itertools import accumulate, chain

import pytest
from msgspec.structs import replace

from common.board import field
from common.board.devices import newest
from common.board.ranking import rank
from common.board.sections import sections
from common.errors import UserError
from common.records import outline, runs, scan
from common.records.outline import Outline
from tests.support import crowd
from tests.support.boards import RUN
from tests.support.boards import row as timed_row
from tests.support.records import written
from tests.support.study import environment
from tests.support.waiting import LONGEST

NAMES = [f"member{number}/rope" for number in range(12)]
PEER = "eager/rope"
KNOWN = {*NAMES, PEER}
ROWS = [timed_row(name, us=5.0 + number, track=track, case=track)
        for number, name in enumerate(NAMES) for track in ("core", "extended")]  # fmt: skip
PEERS = [timed_row(PEER, peer=True, us=20.0, track=track, case=track)
         for track in ("core", "extended")]  # fmt: skip


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The folder of all records; a board of more than 10 rows draws 4 of them."""
    monkeypatch.setattr(field.paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(field, "WHOLE", 10)
    monkeypatch.setattr(field, "BEST", 4)
    return tmp_path / "results"


def drawn(*always):
    (board,) = field.drawn(KNOWN, always).boards
    return board


def places(tracks):
    return {(track.op, track.name, entry.solution): entry.rank
            for track in tracks for entry in track.entries if entry.rank}  # fmt: skip


# --- who is drawn, and their places ---------------------------------------------------------------


def test_the_best_of_a_crowd_are_drawn_with_their_places_among_all(results):
    slow = [replace(each, solution=NAMES[11]) for each in ROWS[:2]]
    written(results / "gpu", *ROWS[:-2], *slow, *PEERS)  # the last one is as fast as the first
    board = drawn()
    shown = {NAMES[0], NAMES[11], PEER}
    assert {row.solution for row in board.latest()} == shown
    everyone = places(rank([*ROWS[:-2], *slow, *PEERS]))
    assert board.places == everyone
    (section,) = sections(board, shown)
    assert places(section.tracks) == {key: everyone[key] for key in everyone if key[2] in shown}
    (line,) = section.left_out
    assert line.startswith("Shown: 3 of 13 solutions, with their places among all")


def test_a_group_is_drawn_whole(results, monkeypatch):
    monkeypatch.setattr(field, "WHOLE", len(ROWS) + 2)
    written(results / "gpu", *ROWS, *PEERS)
    found = field.drawn(KNOWN)
    assert found.boards[0].rows == [*ROWS, *PEERS]
    assert not found.boards[0].unshown and not found.hidden


def test_a_solution_that_is_asked_for_is_read_and_hidden_from_the_files(results):
    written(results / "gpu", *ROWS, *PEERS)
    board = drawn(NAMES[9])
    assert {row.solution for row in board.rows} == {*NAMES[:2], NAMES[9], PEER}
    assert NAMES[9] in field.drawn(KNOWN, [NAMES[9]]).hidden


def test_who_is_not_in_the_tree_takes_no_place(results):
    written(results / "gpu", timed_row("gone/rope", us=1.0, case="core"), *ROWS)
    assert drawn().places["rope", "core", NAMES[0]] == 1


@pytest.mark.parametrize("change", [{"case": "c9"}, {"track": "extended"}, {"us": 30.0}])
def test_places_are_of_the_latest_rows_of_cases_that_count(results, change):
    """As `Results.latest` has them: a later whole run drops a case, moves it, or measures it."""
    written(results / "gpu", *ROWS[::2], run=replace(RUN, run="r0"), name="20260101-r0.jsonl")
    path = results / "gpu" / "20260101-r0.jsonl"
    path.write_text(path.read_text().replace('"run":"r1"', '"run":"r0"'))
    later = [timed_row(name, **({"us": 9.0 - number / 2, "case": "core"} | change))
             for number, name in enumerate(NAMES[:6])]  # fmt: skip
    written(results / "gpu", *later, name="20260102-r1.jsonl")
    expected = places(rank(runs.read(results / "gpu").latest()))
    assert drawn().places == expected


@pytest.mark.parametrize(
    "fault", [{"verdict": "TIMEOUT"}, {"verdict": "TIMEOUT", "gpu": {}}, {"clock": 0}, {"gpu": {}}]
)
def test_who_lacks_a_case_has_no_place(results, fault):
    rows = [replace(ROWS[0], **fault), *ROWS[1:]]
    written(results / "gpu", *rows)
    found = drawn().places
    assert found == places(rank(rows))
    assert ("rope", "core", NAMES[0]) not in found


def test_some_devices_of_many_are_drawn(results):
    for number in range(field.DEVICES + 2):
        written(results / f"gpu-{number}", *ROWS, *PEERS)
    found = field.drawn(KNOWN)
    assert (len(found.boards), found.more) == (field.DEVICES, 2)


# --- the outline ----------------------------------------------------------------------------------


@pytest.fixture(params=[outline.PART, 100], ids=["at once", "in parts"])
def size(request, monkeypatch):
    """Files are scanned at once, or by several processes in parts that are shorter than a line."""
    monkeypatch.setattr(outline, "PART", request.param)


@pytest.mark.usefixtures("size")
def test_an_outline_reads_the_lines_of_some_solutions_and_one_of_each_case(tmp_path):
    written(tmp_path, *ROWS, *PEERS)
    found = Outline.of(tmp_path)
    assert {row.solution for row in found.read([NAMES[5]]).rows} == {NAMES[0], NAMES[5]}
    assert found.read(KNOWN) == runs.read(tmp_path)


def test_each_line_is_of_the_part_that_it_begins_in(tmp_path):
    path = written(tmp_path, *ROWS)
    starts = list(accumulate(map(len, path.read_bytes().splitlines(keepends=True)), initial=0))[:-1]
    for size in (starts[1] - 1, starts[1], starts[1] + 1, starts[-1], path.stat().st_size):
        scans = list(map(scan.scan, scan.parts(path, size)))
        assert list(chain.from_iterable(each.starts for each in scans)) == starts


@pytest.mark.usefixtures("size")
def test_the_places_of_parts_are_those_of_the_whole(results):
    written(results / "gpu", *ROWS, *PEERS)
    assert drawn().places == places(rank([*ROWS, *PEERS]))


@pytest.mark.usefixtures("size")
def test_the_gist_of_a_device_tells_its_order(tmp_path):
    written(tmp_path, *ROWS, *PEERS)
    gist, whole = Outline.of(tmp_path).gist(), runs.read(tmp_path)
    assert gist.rows == ROWS[:1]
    assert newest(gist) == newest(whole) != newest(runs.Results(tmp_path))


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{torn", "line 3 is no record of schema 2"),
        ('{"schema": 1, "kind": "end", "run": "r1"}', "line 3 is no record of schema 2"),
        ('{"schema": 2, "kind": "end", "run": "another"}', "line 3 .* begins with its run"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, says):
    path = written(tmp_path, ROWS[0], end=False)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError, match=says):
        Outline.of(tmp_path)


def test_a_line_that_is_drawn_is_validated_whole(tmp_path):
    path = written(tmp_path, *ROWS[:2], end=False)
    last = json.loads(path.read_text().splitlines()[-1]) | {"unheard": "of"}
    path.write_text(path.read_text() + json.dumps(last) + "\n")
    found = Outline.of(tmp_path)
    with pytest.raises(UserError, match=r"line 4 is no record of schema 2 .*unheard"):
        found.read([NAMES[0]])


@pytest.mark.usefixtures("size")
def test_a_torn_line_is_left_out(tmp_path, capsys):
    path = written(tmp_path, *ROWS[:2], end=False)
    path.write_text(path.read_text()[:-5])
    assert Outline.of(tmp_path).read(KNOWN).rows == ROWS[:1]
    assert "cut off" in capsys.readouterr().err


# --- work and memory ------------------------------------------------------------------------------

MEASURED = """
import os, re, sys
from pathlib import Path
from common import cli
from common.records import outline
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as many processes on every machine
decoded, whole = outline._decoded, []
outline._decoded = lambda *line: whole.append(1) or decoded(*line)
code = 0
try:
    cli.main(["leaderboard"])
except SystemExit as end:
    code = end.code
# ru_maxrss would begin with the parent's
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
print(code, len(whole), peak, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_board_of_100_000_rows_decodes_few_of_them_and_takes_little_memory(tmp_path):
    """Read and drawn in full, a tenth of these rows took 30 s.

    `python -m tests.generators.crowding` measures the time.
    """
    root = crowd.tree(tmp_path / "tree", solutions=1000)
    ran = subprocess.run([sys.executable, "-c", MEASURED], cwd=root, env=environment(),
                         capture_output=True, text=True, timeout=LONGEST)  # fmt: skip
    code, whole, peak = ran.stderr.splitlines()[-1].split()
    assert code == "0", ran.stderr
    assert "Shown: 7 of 250 solutions" in (root / "README.md").read_text()
    assert int(whole) < 5_000
    assert int(peak) < 350 << 20
    assert (root / "site" / "index.html").stat().st_size < 2 << 20
