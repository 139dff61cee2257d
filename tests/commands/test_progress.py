"""What a long command says of its progress, by a clock that the tests set."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from common.commands import progress
from common.commands.progress import Progress, duration
from tests.support.waiting import LONGEST, wait_until


@pytest.fixture
def clock():
    now = [100.0]
    return now, lambda: now[0]


def on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


def test_a_line_says_what_is_done_and_how_long_the_rest_will_take(clock):
    now, read = clock
    steps = Progress("rows", 362, now=read)
    now[0] += 7
    assert steps.line() == "study: 0 of 362 rows, 7 s (starting)"
    for _ in range(42):
        steps.done("house/rope thd-64x16384")
    now[0] += 63
    expected = "study: 42 of 362 rows, 1 min 10 s, about 9 min left (house/rope thd-64x16384)"
    assert steps.line() == expected
    steps.skip(320)
    steps.doing("counting house/rope")  # what follows the last step is not counted
    assert steps.line() == "study: 42 of 42 rows, 1 min 10 s (counting house/rope)"


def test_a_line_counts_verdicts_and_busy_devices(clock):
    """What an earlier run did says nothing of the time left."""
    now, read = clock
    steps = Progress("rows", 0, now=read)
    steps.total(10)
    for kept in (True, True, True, True, False):
        steps.done("a", kept=kept)
    now[0] += 4
    assert steps.line() == "study: 5 of 10 rows, 4 s, about 20 s left (a)"
    steps.busy = lambda: (3, 4)
    for verdict in ("PASSED", "PASSED", "CRASHED"):
        steps.done("b", verdicts=[verdict])
    state = "1.00 rows/s, 2 PASSED, 1 CRASHED, 3 of 4 devices busy"
    assert steps.line() == f"study: 8 of 10 rows, 4 s, about 2 s left, {state} (b)"
    steps.busy = lambda: (1, 1)
    assert "device" not in steps.line()


def test_a_line_comes_every_period_where_stderr_is_no_terminal(clock, monkeypatch, capsys):
    now, read = clock
    monkeypatch.setattr(progress, "PERIOD", 0.01)
    line, lines = "study: 1 of 3 cases, 7 s, about 14 s left (a)", []
    with Progress("cases", 3, now=read) as steps:
        steps.done("a")
        now[0] += 7
        assert wait_until(
            lambda: lines.extend(capsys.readouterr().err.splitlines()) or lines.count(line) > 1
        )
    steps._thread.join(LONGEST)
    assert not steps._thread.is_alive(), "no line comes after the end"


def test_a_terminal_has_a_bar_with_the_time_left_instead(clock, monkeypatch, capsys):
    on_a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    with Progress("cases", 3, now=clock[1]) as steps:
        steps.done("a")
        print("a line for a file")
        steps.say("a failure [of] a")
        assert steps._thread.ident is None, "no line comes every period"
    out, err = capsys.readouterr()
    assert out == "a line for a file\n", "it is not drawn into the bar"
    assert "1/3" in err and "a failure [of] a" in err
    assert "study:" not in err


def test_no_time_left_is_said_before_enough_steps_tell_it(clock):
    """The first case of a run is done by all solutions at once: "one second left", of minutes."""
    now, read = clock
    steps = Progress("rows", 752, now=read)
    now[0] += 47
    for count, left in ((12, ""), (82, ", about 5 min left")):
        for _ in range(count):
            steps.done("a")
        assert f"47 s{left} (a)" in steps.line()


def test_a_bar_is_shown_before_its_steps_are_counted_and_none_for_no_step(monkeypatch, capsys):
    on_a_terminal(monkeypatch)
    with Progress("rows", now=lambda: 7.0) as steps:
        steps.doing("starting two devices")
        steps._bars.refresh()
    assert "starting two devices" in capsys.readouterr().err
    with Progress("rows", 0):
        pass
    assert "rows" not in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "hidden"), [(stat.S_IFIFO, True), (stat.S_IFREG, False)])
def test_no_bar_is_drawn_over_the_lines_of_a_pager(monkeypatch, kind, hidden):
    on_a_terminal(monkeypatch)
    stdout = os.stat_result([kind, *[0] * 9])
    monkeypatch.setattr(os, "fstat", lambda fd: stdout)
    assert Progress("rows", 1)._bars.disable == hidden


def test_a_full_bar_goes_by_what_it_counted(clock, monkeypatch, capsys):
    """Two bars of the same cases once ended with the same name, the last case's."""
    on_a_terminal(monkeypatch)
    for total, last in ((1, "cases"), (2, "house/rope")):
        with Progress("cases", total, now=clock[1]) as steps:
            steps.done("house/rope")
        shown = capsys.readouterr().err.rpartition("\x1b[2K")[2]
        assert shown.startswith(f"{last} "), "where it was interrupted, by the last step"


@pytest.mark.parametrize("width", ["60", "80", "120", "160"])
def test_a_long_name_leaves_room_for_the_count_and_the_time_left(clock, monkeypatch, capsys, width):
    """At 80 columns the name of a case once took the bar, the count and both times."""
    on_a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", width)
    with Progress("cases", 12600, now=clock[1]) as steps:
        steps.done(f"{'h' * 39}/rope_base thd-64x16384x32x128-bfloat16-interleaved-{'t' * 99}")
    err = capsys.readouterr().err
    assert "1/12600" in err and "0:00:00" in err


@pytest.mark.parametrize(
    ("seconds", "exact", "words"),
    [(0.4, True, "0 s"), (59.4, False, "59 s"), (70, True, "1 min 10 s"), (540.3, False, "9 min")],
)
def test_a_duration_in_words(seconds, exact, words):
    assert duration(seconds, exact) == words
