"""Two runs side by side, with numbers worked out by hand."""

import pytest
from msgspec.structs import replace

from common.board import terminal
from common.board.comparison import compare
from common.records.lines import SCHEMA, Run
from common.records.runs import Results
from tests.support.boards import failed, printed, row, summary

FIRST = Run(
    schema=SCHEMA, run="r1", device="cuda", device_name="A GPU",
    versions={"torch": "2", "numpy": "1", "fla": "1"}, absent={},
)  # fmt: skip
SECOND = replace(FIRST, run="r2")
RUNS = (FIRST, SECOND, replace(FIRST, run="r3"))
KNOWN = {"alice/rope", "bob/rope", "carol/rope", "eager/rope", "alice/rotate_half"}


def timed(run, us, eager=200.0, solution="alice/rope", **fields):
    return row(solution, us=us, eager=eager, run=run, **fields)


def results(*rows, runs=(FIRST, SECOND), finished=None):
    names = {run.run for run in runs} if finished is None else finished
    return Results(path=None, runs=list(runs), rows=list(rows), finished=names)


def shown(*rows):
    """The one track's table."""
    (comparison,) = compare(results(*rows), KNOWN)
    (table,) = comparison.tables
    return table


def cells(*rows):
    """The ratio, the furthest ratio and its case of each solution."""
    return [line[3:] for line in shown(*rows).rows]


# --- which runs -----------------------------------------------------------------------------------


def runs_of(*rows, **where):
    found = compare(results(*rows, **where), KNOWN)
    return {each.op: (each.earlier.run, each.later.run) for each in found}


ROPE = [timed(run, 10.0) for run in ("r1", "r2", "r3")]
GONE = [timed(run, 10.0, solution="gone/rope") for run in ("r1", "r2")]


def test_the_latest_two_runs_of_each_op_are_compared():
    half = [timed(run, 10.0, solution="alice/rotate_half", op="rotate_half")
            for run in ("r1", "r2")]  # fmt: skip
    expected = {"rope": ("r2", "r3"), "rotate_half": ("r1", "r2")}
    assert runs_of(*ROPE, *half, runs=RUNS) == expected
    assert runs_of(*reversed(ROPE), *half, runs=RUNS) == expected, "by the runs, not by the rows"


@pytest.mark.parametrize(
    ("rows", "finished", "expected"),
    [
        (ROPE, {"r1", "r2"}, {"rope": ("r1", "r2")}),
        (ROPE, {"r3"}, {}),
        ([ROPE[0], replace(ROPE[1], tier="plot")], None, {}),
        (GONE, None, {}),
        *((rows, None, expected)
          for other in ({"solution": "bob/rope"}, {"case": "c2"}, {"track": "extended"},
                        {"ranked_by": "host"})
          for between in [replace(ROPE[1], **other)]
          for rows, expected in (([ROPE[0], between, ROPE[2]], {"rope": ("r1", "r3")}),
                                 ([ROPE[0], between], {}))),
    ],
)  # fmt: skip
def test_only_finished_runs_that_share_a_row_of_the_board_are_compared(rows, finished, expected):
    assert runs_of(*rows, runs=RUNS, finished=finished) == expected


def test_what_else_changed_is_said():
    newer = replace(SECOND, versions={"torch": "3", "numpy": "1", "quack": "7"})
    for fields, runs, changed in (
        ({}, (FIRST, SECOND), ()),
        ({"harness": "h2"}, (FIRST, newer), ("the harness", "torch from 2 to 3")),
        ({"clock": 2}, (FIRST, SECOND), ("the version of the clock",)),
    ):
        rows = [timed("r1", 10.0), timed("r2", 10.0, **fields)]
        (comparison,) = compare(results(*rows, runs=runs), KNOWN)
        assert comparison.changed == changed


# --- the ratios -----------------------------------------------------------------------------------


def test_a_ratio_is_of_the_scores_and_the_furthest_of_one_case():
    alice, eager = shown(
        timed("r1", 100.0), timed("r2", 100.0),
        timed("r1", 100.0, case="c2", direction="backward"),
        timed("r2", 125.0, case="c2", direction="backward"),
        timed("r1", 200.0, solution="eager/rope", peer=True),
        timed("r2", 200.0, solution="eager/rope", peer=True),
    ).rows  # fmt: skip
    assert alice == ("alice/rope", "2.00", "1.79", "0.894", "0.800", "c2, with backward")
    assert eager == ("(eager/rope)", "–", "–", "–", "1.000", "c1"), "it lacks c2"


def test_a_ratio_is_by_the_clock_that_ranks():
    hosts = [{"solution": summary(us), "eager": summary(60.0)} for us in (40.0, 30.0)]
    rows = [timed(run, 100.0, ranked_by="host", host=host)
            for run, host in zip(("r1", "r2"), hosts, strict=True)]  # fmt: skip
    assert cells(*rows) == [("1.333", "1.333", "c1")]


def test_scores_are_over_the_cases_of_both_runs_alone():
    rows = [timed("r1", 100.0), timed("r1", 1.0, case="gone"),
            timed("r2", 100.0), timed("r2", 100.0, 800.0, case="new")]  # fmt: skip
    assert cells(*rows) == [("1.000", "1.000", "c1")]


def test_a_changed_verdict_is_a_line_and_an_untimed_solution_has_no_row():
    drawn = shown(
        timed("r1", 100.0), failed("alice/rope", run="r2"),
        timed("r1", 100.0, case="c2"), timed("r2", 100.0, case="c2"),
        failed("carol/rope", run="r1"), failed("carol/rope", run="r2"),
    )  # fmt: skip
    assert [line[3:] for line in drawn.rows] == [("–", "1.000", "c2")]
    assert drawn.footnotes == ("alice/rope c1 forward: PASSED, then TIMEOUT",)


def test_a_solution_whose_source_changed_is_marked():
    rows = [timed(run, 100.0, solution=solution) for run in ("r1", "r2")
            for solution in ("alice/rope", "bob/rope")]  # fmt: skip
    assert not shown(*rows).footnotes
    drawn = shown(*rows[:-1], replace(rows[-1], sources="s2"))
    assert [line[0] for line in drawn.rows] == ["alice/rope", "bob/rope*"]
    assert drawn.footnotes[-1].startswith("*")


def test_the_terminal_shows_the_runs_what_changed_and_who_stands_out():
    rows = [timed("r1", 100.0, sources="s0"), timed("r2", 100.0, harness="h2"),
            timed("r2", 9.0, solution="alice/rotate_half", op="rotate_half")]  # fmt: skip
    given = results(*rows)
    text = printed(160, terminal.show_comparisons, given, compare(given, KNOWN),
                   only="alice/rope", force_terminal=True)  # fmt: skip
    for part in ("A GPU", "rope: run r1, then r2; between them changed the harness",
                 "not in two finished runs: rotate_half"):  # fmt: skip
        assert part in text
    (line,) = (line for line in text.splitlines() if "alice/rope*" in line)
    assert "\x1b[1;32m" in line, "bold green, marked or not"
