"""Two runs side by side, with numbers worked out by hand."""

import re

import pytest
from msgspec.structs import replace

from common.board import terminal
from common.board.comparison import compare
from common.board.devices import Device
from common.board.ranking import About
from common.records.runs import Results
from tests.support import boards
from tests.support.boards import failed, printed, row, summary

FIRST = replace(boards.RUN, versions={"torch": "2", "numpy": "1", "fla": "1"})
SECOND = replace(FIRST, run="r2")
RUNS = (FIRST, SECOND, replace(FIRST, run="r3"))
KNOWN = {"alice/rope", "bob/rope", "carol/rope", "eager/rope", "alice/rotate_half"}


def timed(run, us=10.0, eager=200.0, solution="alice/rope", **fields):
    return row(solution, us=us, eager=eager, run=run, **fields)


def results(*rows, runs=(FIRST, SECOND)):
    """Records of interrupted runs."""
    return Device(Results(None, list(runs), list(rows)), dict.fromkeys(KNOWN, About()))


def shown(*rows):
    """The op's table."""
    return compare(results(*rows))["rope"][1]


# --- which runs -----------------------------------------------------------------------------------

ROPE = [timed(run) for run in ("r1", "r2", "r3")]
HALF = [timed(run, solution="alice/rotate_half", op="rotate_half") for run in ("r1", "r2")]
LAST = {"rope": "rope: run r2, then r3"}
OTHERS = ({"solution": "bob/rope"}, {"case": "c2"}, {"track": "extended"}, {"ranked_by": "host"})


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([*ROPE, *HALF], LAST | {"rotate_half": "rotate_half: run r1, then r2"}),
        ([timed(run, solution="gone/rope") for run in ("r1", "r2")], {}),
        *(([ROPE[0], replace(ROPE[1], **other), ROPE[2]], {"rope": "rope: run r1, then r3"})
          for other in OTHERS),
    ],
)  # fmt: skip
def test_the_latest_two_runs_that_share_a_row_are_compared(rows, expected):
    found = compare(results(*rows, runs=RUNS))
    assert {op: runs for op, (runs, _) in found.items()} == expected


@pytest.mark.parametrize(
    ("fields", "run", "changed"),
    [
        ({}, SECOND, ""),
        ({"clock": 2}, SECOND, "; between them changed the version of the clock"),
        ({"harness": "h2"}, replace(SECOND, versions={"torch": "3", "numpy": "1", "quack": "7"}),
         "; between them changed the harness, torch from 2 to 3"),
    ],
)  # fmt: skip
def test_what_else_changed_is_said(fields, run, changed):
    rows = [timed("r1"), timed("r2", **fields)]
    found = compare(results(*rows, runs=(FIRST, run)))
    assert found["rope"][0] == f"rope: run r1, then r2{changed}"


# --- the ratios -----------------------------------------------------------------------------------

HOST = [{"solution": summary(us), "eager": summary(60.0)} for us in (40.0, 30.0)]


@pytest.mark.parametrize(
    ("rows", "ratio"),
    [
        pytest.param([timed(run, 100.0, ranked_by="host", host=host)
                      for run, host in zip(("r1", "r2"), HOST, strict=True)],
                     "1.333", id="by the clock that ranks"),
        pytest.param([timed("r1", 100.0), timed("r1", 1.0, case="gone"),
                      timed("r2", 100.0), timed("r2", 100.0, 800.0, case="new")], "1.000",
                     id="over the cases of both alone"),
        pytest.param([timed("r1"), failed("alice/rope", run="r2"),
                      timed("r1", case="c2"), timed("r2", case="c2"),
                      failed("carol/rope", run="r1"), failed("carol/rope", run="r2")], "1.000",
                     id="none of an untimed solution"),
    ],
)  # fmt: skip
def test_ratios_are_of_what_both_runs_timed(rows, ratio):
    drawn = shown(*rows)
    assert [line[1:] for line in drawn.rows] == [(ratio,)]
    verdicts = ("alice/rope c1 forward: PASSED, then TIMEOUT",)
    assert drawn.footnotes == verdicts * any(row.verdict != "PASSED" for row in rows)


def test_a_ratio_is_the_mean_over_the_cases():
    alice, eager = shown(
        timed("r1", 100.0), timed("r2", 100.0),
        timed("r1", 100.0, case="c2"),
        timed("r2", 125.0, case="c2"),
        timed("r1", 200.0, solution="eager/rope", peer=True),
        timed("r2", 200.0, solution="eager/rope", peer=True),
    ).rows  # fmt: skip
    assert alice == ("alice/rope", "0.894")
    assert eager == ("(eager/rope)", "1.000")


def test_the_terminal_marks_whose_source_changed_and_names_an_op_of_one_run():
    rows = [timed(run, solution=solution) for run in ("r1", "r2")
            for solution in ("alice/rope", "bob/rope")]  # fmt: skip
    assert not shown(*rows).footnotes
    given = results(*rows[:-1], replace(rows[-1], sources="s2"), HALF[1])
    text = printed(160, terminal.show_comparisons, given, compare(given), only="bob/rope",
                   force_terminal=True)  # fmt: skip
    assert "rope: run r1, then r2" in text and "not in two runs: rotate_half" in text
    plain = " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split())
    assert "alice/rope " in plain and "* its source changed between the runs" in plain
    (line,) = (line for line in text.splitlines() if "bob/rope*" in line)
    assert "\x1b[1;32m" in line, "bold green, marked or not"
