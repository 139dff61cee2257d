"""What a long command says of its progress, by a clock that the tests set."""

from __future__ import annotations

import os
import stat
import sys
import threading
from types import SimpleNamespace

import pytest

from common.commands import progress
from common.commands.progress import Progress
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock of the bars, which the tests set."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("rich.console.monotonic", lambda: clock.now)
    return clock


def on_a_terminal(monkeypatch, width="80"):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", width)


def test_a_line_says_what_is_done_and_how_long_the_rest_takes(clock):
    steps = Progress("rows", 362)
    clock.now += 7
    assert steps.line() == "study: 0 of 362 rows, 7 s (starting)"
    for _ in range(42):
        steps.done("house/rope thd-64x16384")
    clock.now += 63
    expected = "study: 42 of 362 rows, 1 min 10 s, about 9 min left (house/rope thd-64x16384)"
    assert steps.line() == expected
    steps.skip(320)
    steps.doing("counting house/rope")  # what follows the last step is not counted
    assert steps.line() == "study: 42 of 42 rows, 1 min 10 s (counting house/rope)"


def test_a_few_steps_do_not_tell_the_time_left(clock):
    """The first case of a run is done by all solutions at once."""
    steps = Progress("rows", 0)
    steps.total(352)
    clock.now += 47
    for count, left in ((12, ""), (28, ", about 6 min left")):
        for _ in range(count):
            steps.done("a")
        assert f"47 s{left} (a)" in steps.line()


def test_a_line_comes_every_period_where_stderr_is_no_terminal(monkeypatch, capsys, clock):
    monkeypatch.setattr(progress, "PERIOD", 0.01)
    lines, before = [], threading.active_count()
    with Progress("cases", 3) as steps:
        steps.done("a")
        clock.now += 7
        line = "study: 1 of 3 cases, 7 s, about 14 s left (a)"
        assert wait_until(
            lambda: lines.extend(capsys.readouterr().err.splitlines()) or lines.count(line) > 1
        )
    assert wait_until(lambda: threading.active_count() == before), "no line comes after the end"


@pytest.mark.parametrize("width", ["60", "80", "160"])
def test_a_terminal_has_a_bar_with_room_for_its_numbers(monkeypatch, capsys, width):
    on_a_terminal(monkeypatch, width)
    with Progress("cases", 12600) as steps:
        steps.done(f"{'h' * 39}/rope_base thd-64x16384x32x128-bfloat16-interleaved-{'t' * 99}")
        print("a line for a file")
        steps.say("a failure [of] a")
    out, err = capsys.readouterr()
    assert out == "a line for a file\n", "it is not drawn into the bar"
    assert "1/12600" in err and "0:00:00" in err and "a failure [of] a" in err
    assert "study:" not in err


@pytest.mark.parametrize(("kind", "hidden"), [(stat.S_IFIFO, True), (stat.S_IFREG, False)])
def test_no_bar_is_drawn_over_the_lines_of_a_pager(monkeypatch, capsys, kind, hidden):
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result([kind, *[0] * 9]))
    with Progress("rows", 1) as steps:
        steps.done("a")
    assert ("1/1" not in capsys.readouterr().err) == hidden


@pytest.mark.parametrize(("total", "last"), [(1, "cases"), (2, "house/rope")])
def test_a_full_bar_goes_by_what_it_counted(monkeypatch, capsys, total, last):
    on_a_terminal(monkeypatch)
    with Progress("cases", total) as steps:
        steps.done("house/rope")
    assert capsys.readouterr().err.rpartition("\x1b[2K")[2].startswith(f"{last} ")
