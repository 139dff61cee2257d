"""`leaderboard --json`, the boards for scripts."""

import json

import pytest

from common.board import columns
from tests.support.boards import TIMED, devices


def exported(only=""):
    return list(columns.rows(devices(TIMED), only))


def test_a_row_has_what_the_board_has():
    rows = exported()
    alice, eager, bob = rows
    assert [each["solution"] for each in rows] == ["alice/rope", "eager/rope", "bob/rope"]
    assert (alice["device"], alice["op"], alice["track"]) == ("A GPU", "rope", "core")
    assert alice["place"] == 1 and [alice["times_eager"], alice["low"]] == pytest.approx([2.0, 2.0])
    assert alice["share_of_limit"] == 0.5 and alice["limited_case"] == "c1"
    assert (alice["covered"], alice["cells"], alice["error"]) == (1, 1, 0.5)
    assert alice["note"] == "tiles | pipes" and not alice["stale"] and eager["peer"]
    assert bob["place"] is None and bob["times_eager"] is None
    assert bob["lacks"].startswith("TIMEOUT") and bob["stale"]
    assert exported("alice,bob/rope.py") == [alice, bob] and exported("alice/ro") == []
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.slow
def test_the_command_prints_data_alone_and_writes_nothing(study, repository, recorded):
    ran = study("leaderboard", "--json", "--only", "house", hidden="torch triton matplotlib jinja2")
    assert ran.code == 0, ran.err
    (row,) = json.loads(ran.out)
    assert row["solution"] == "house/rope"
    assert float(row["times_eager"]) == pytest.approx(2.5)
    assert not (repository / "LEADERBOARD.md").exists()
    assert not (repository / "site").exists()
