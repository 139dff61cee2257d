"""What a long command says of its progress, by a clock that the tests set."""

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
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", width)


def test_a_line_says_what_is_done_and_how_long_the_rest_takes(clock):
    """The first steps, which all solutions do at once, tell no time; a late step does."""
    steps = Progress("rows", 400)
    steps.skip(38)
    clock.now += 7
    assert steps.line() == "study: 0 of 362 rows, 7 s (starting)"
    for _ in range(2):
        steps.done("house/rope thd-64x16384")
        assert "left" not in steps.line()
    clock.now += 63
    for _ in range(40):
        steps.done("house/rope thd-64x16384")
    expected = "study: 42 of 362 rows, 1 min 10 s, about 9 min left (house/rope thd-64x16384)"
    assert steps.line() == expected
    clock.now += 70
    assert "about 18 min left" in steps.line()
    steps.skip(320)
    steps.total(None)
    clock.now += 60
    steps.doing("counting house/rope")
    assert steps.line() == "study: 42 rows, 3 min 20 s (counting house/rope)"


def test_a_line_comes_every_period_where_stderr_is_no_terminal(monkeypatch, capsys, clock):
    monkeypatch.setattr(progress, "PERIOD", 0.01)
    lines, before = [], threading.active_count()
    with Progress("cases", 3) as steps:
        steps.done("a")
        clock.now += 7
        steps.done("b")
        line = "study: 2 of 3 cases, 7 s, about 4 s left (b)"
        assert wait_until(
            lambda: lines.extend(capsys.readouterr().err.splitlines()) or lines.count(line) > 1
        )
    assert wait_until(lambda: threading.active_count() == before), "no line comes after the end"


@pytest.mark.parametrize("width", ["60", "80", "160"])
def test_a_terminal_has_a_bar_with_room_for_its_numbers(monkeypatch, capsys, width):
    on_a_terminal(monkeypatch, width)
    with Progress("cases", 12600) as steps:
        steps.done(f"{'h' * 39}/rope_base thd-64x16384x32x128-bfloat16-interleaved-{'t' * 99}")
        steps.say("a failure [of] a")
    _, err = capsys.readouterr()
    assert "1/12600" in err and "0:00:00" in err and "a failure [of] a" in err
    assert "study:" not in err


def test_no_bar_is_drawn_over_the_lines_of_a_pager(monkeypatch, capsys):
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    with Progress("rows", 1) as steps:
        steps.done("a")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("total", "last"), [(1, "cases"), (2, "house/rope")])
def test_a_full_bar_goes_by_what_it_counted(monkeypatch, capsys, total, last):
    on_a_terminal(monkeypatch)
    with Progress("cases", total) as steps:
        steps.done("house/rope")
    assert capsys.readouterr().err.rpartition("\x1b[2K")[2].startswith(f"{last} ")
