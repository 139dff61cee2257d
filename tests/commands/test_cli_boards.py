"""`study leaderboard`: what it draws from records, without torch, and what it refuses."""

import json

import pytest
from msgspec.structs import replace

from common import ops
from common.board import model
from tests.support import boards
from tests.support.records import row, written
from tests.support.study import one_line

HIDDEN = "torch triton"


@pytest.mark.slow
def test_leaderboard_needs_no_torch_and_writes_the_boards(study, repository, recorded):
    options = "--op rope --only house --device cpu --verbose"  # bench's own, as nox hands them on
    ran = study("leaderboard", *options.split(), hidden=HIDDEN)
    assert ran.code == 0, ran.err
    readme, whole = ((repository / name).read_text() for name in ("README.md", "LEADERBOARD.md"))
    for text, score in ((ran.out, "50.0%"), (whole, "2.50×"), (readme, " 50.0% |")):
        assert "house/rope" in text
        assert score in text
    assert (repository / "site" / "index.html").exists()
    assert ran.out.splitlines()[-1] == "the page: site/index.html"


def test_an_op_without_a_result_gets_a_line(study, recorded):
    ran = study("leaderboard", "--op", "rotate_half")
    assert ran.code == 0
    assert ran.err == (
        "study: no result of rotate_half is recorded yet:"
        " nox -s bench leaderboard -- --op rotate_half\n"
    )


@pytest.fixture
def twice(recorded):
    """The record finished, and the same run again."""
    once = recorded.read_text() + '{"schema":2,"kind":"end","run":"r1"}\n'
    recorded.write_text(once)
    recorded.with_name("20261121T082931Z-r2.jsonl").write_text(once.replace('"r1"', '"r2"'))


def test_two_runs_are_compared_without_torch_and_nothing_is_written(study, repository, twice):
    before = (repository / "README.md").read_text()
    ran = study("leaderboard", "--compare", "--device", "cpu", hidden=HIDDEN)
    assert ran.code == 0, ran.err
    assert "rope: run r1, then r2" in ran.out
    assert ran.out.split()[-2:] == ["house/rope", "1.000"]
    assert (repository / "README.md").read_text() == before
    assert not (repository / "LEADERBOARD.md").exists()


def test_one_run_of_one_device_is_told_what_is_missing(study, recorded):
    assert "run bench again" in one_line(study("leaderboard", "--compare"))


def test_a_torn_last_line_is_a_notice_and_another_schema_is_refused(study, repository, recorded):
    """Without a terminal nothing is coloured."""
    recorded.write_text(recorded.read_text() + '{"schema": 2, "ki')
    ran = study("leaderboard", "--json", "--only", "house", hidden="torch triton jinja2")
    assert ran.code == 0
    assert len(ran.err.splitlines()) == 1 and "\x1b" not in ran.out + ran.err
    (listed,) = json.loads(ran.out)
    assert listed["solution"] == "house/rope"
    assert listed["columns"]["GPU, forward"]["times_eager"] == pytest.approx(2.5)
    assert not (repository / "site").exists()
    recorded.write_text(recorded.read_text().replace('{"schema": 2, "ki', '{"schema": 99}\n'))
    assert "line 3" in one_line(study("leaderboard"))


def test_a_folder_without_a_gpu_is_told_its_places_among_those_of_the_modelled_gpu(
    study, repository, recorded
):
    """A measured case that the op no longer has does not count."""
    case = next(case.name for case in ops.load("rope").cases("board"))
    timed = [boards.row("house/rope_fast", us=6.0, case=name) for name in (case, "gone")]
    gpu = repository / "results" / "h200"
    written(gpu, *timed, run=replace(boards.RUN, device_name=model.DEFAULT))
    twin = row(solution="house/rope", case=f"{case}-twin", twin=True, gpu={}, host={})
    counted = replace(boards.counted("house/rope", boards.launch()), case=case, row=twin.case)
    written(repository / "results" / "cpu", twin, counted)
    ran = study("leaderboard", "--only", "house/rope")
    line = next(line for line in ran.out.splitlines() if "modelled on an H200" in line)
    assert line.startswith("house/rope forward, ") and "place 1 of 2 in core" in line
