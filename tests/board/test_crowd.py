"""A crowd is ranked whole, and its best are drawn, within the time of a laptop."""

import subprocess
import sys

import pytest
from msgspec.structs import replace

from common.board import devices
from common.board.devices import sections
from common.board.ranking import rank
from common.records import runs
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
    monkeypatch.setattr(runs.paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(devices, "WHOLE", 10)
    monkeypatch.setattr(devices, "BEST", 4)
    return tmp_path / "results"


def everything(*always):
    return devices.drawn(runs.devices(), KNOWN, always)


def drawn(*always):
    (board,) = everything(*always).boards
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
    monkeypatch.setattr(devices, "WHOLE", len(ROWS) + 2)
    written(results / "gpu", *ROWS, *PEERS)
    found = everything()
    assert found.boards[0].rows == [*ROWS, *PEERS]
    assert not found.boards[0].unshown and not found.hidden


def test_a_solution_that_is_asked_for_is_read_and_hidden_from_the_files(results):
    written(results / "gpu", *ROWS, *PEERS)
    board = drawn(NAMES[9])
    assert {row.solution for row in board.rows} == {*NAMES[:2], NAMES[9], PEER}
    assert NAMES[9] in everything(NAMES[9]).hidden


def test_who_is_not_in_the_tree_takes_no_place(results):
    written(results / "gpu", timed_row("gone/rope", us=1.0, case="core"), *ROWS)
    assert drawn().places["rope", "core", NAMES[0]] == 1


@pytest.mark.parametrize("change", [{"case": "c9"}, {"track": "extended"}, {"us": 30.0}])
def test_places_are_of_the_latest_rows_of_cases_that_count(results, change, monkeypatch):
    """As `Results.latest` has them: a later whole run drops a case, moves it, or measures it."""
    monkeypatch.setattr(devices, "WHOLE", 5)
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
    for number in range(devices.MOST + 2):
        written(results / f"gpu-{number}", *ROWS, *PEERS)
    found = everything()
    assert (len(found.boards), found.more) == (devices.MOST, 2)


@pytest.mark.slow
def test_a_board_of_100_000_rows_draws_the_best_of_them(tmp_path):
    """Drawn in full, a tenth of these rows took 30 s."""
    root = crowd.tree(tmp_path / "tree", solutions=1000)
    ran = subprocess.run([sys.executable, "-m", "common", "leaderboard"], cwd=root,
                         env=environment(), capture_output=True, text=True,
                         timeout=LONGEST)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Shown: 7 of 250 solutions" in (root / "README.md").read_text()
    assert (root / "site" / "index.html").stat().st_size < 2 << 20
