"""Two runs side by side, with numbers worked out by hand."""

import pytest
from msgspec.structs import replace

from common.board import comparison, table, terminal
from common.board.comparison import compare
from common.records.lines import SCHEMA, Run
from common.records.runs import Results
from tests.support.boards import failed, printed, row, summary

FIRST = Run(
    schema=SCHEMA, run="r1", device="cuda", device_name="A GPU",
    versions={"torch": "2", "numpy": "1", "fla": "1"}, absent={},
)  # fmt: skip
SECOND = replace(FIRST, run="r2")
THIRD = replace(FIRST, run="r3")
KNOWN = {"alice/rope", "bob/rope", "carol/rope", "eager/rope", "alice/rotate_half"}


def timed(run, us, eager=200.0, solution="alice/rope", **fields):
    return row(solution, us=us, eager=eager, run=run, **fields)


def results(*rows, runs=(FIRST, SECOND), finished=None):
    names = {run.run for run in runs} if finished is None else finished
    return Results(path=None, runs=list(runs), rows=list(rows), finished=names)


def compared(*rows, **where):
    """The one op's comparison."""
    (comparison,) = compare(results(*rows, **where), KNOWN)
    return comparison


def track(*rows, **where):
    """The one track's."""
    (both,) = compared(*rows, **where).tracks
    return both


def shown(*rows):
    return comparison.table_of(track(*rows))


# --- which runs -----------------------------------------------------------------------------------


def runs_of(*rows, **where):
    found = compare(results(*rows, **where), KNOWN)
    return {each.op: (each.earlier.run, each.later.run) for each in found}


RUNS = (FIRST, SECOND, THIRD)
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
        (ROPE, set(), {}),
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
def test_unfinished_runs_plots_who_is_gone_and_runs_that_share_no_row_have_no_part(
    rows, finished, expected
):
    assert runs_of(*rows, runs=RUNS, finished=finished) == expected


def test_what_else_changed_is_said():
    newer = replace(SECOND, versions={"torch": "3", "numpy": "1", "quack": "7"})
    rows = [timed("r1", 10.0), timed("r2", 10.0, harness="h2")]
    assert compared(*rows, runs=(FIRST, newer)).changed == ["the harness", "torch from 2 to 3"]
    assert compared(timed("r1", 10.0), timed("r2", 10.0)).changed == []
    later = compared(timed("r1", 10.0), timed("r2", 10.0, clock=2))
    assert later.changed == ["the version of the clock"]


# --- the numbers ----------------------------------------------------------------------------------


def test_a_row_moves_by_its_ratio_to_eager_by_the_clock_that_ranks():
    both = track(
        timed("r1", 100.0, 200.0), timed("r2", 50.0, 110.0),  # 2 to 2.2
        timed("r1", 100.0, 200.0, case="c2"), timed("r2", 200.0, 400.0, case="c2"),
    )  # fmt: skip
    assert [move.change for move in both.moves] == pytest.approx([0.1, 0.0])
    (pair,) = both.pairs
    assert pair.change == pytest.approx(1.1**0.5 - 1)
    hosts = [{"solution": summary(us), "eager": summary(60.0)} for us in (40.0, 30.0)]
    rows = [timed(run, 100.0, ranked_by="host", host=host)
            for run, host in zip(("r1", "r2"), hosts, strict=True)]  # fmt: skip
    (move,) = track(*rows).moves
    assert move.change == pytest.approx(2.0 / 1.5 - 1)


def test_scores_are_over_the_cases_of_either_run_alone():
    both = track(
        timed("r1", 100.0, 200.0), timed("r1", 1.0, 200.0, case="gone"),
        timed("r2", 100.0, 200.0), timed("r2", 100.0, 800.0, case="new"),
    )  # fmt: skip
    (pair,) = both.pairs
    assert (pair.earlier.score.value, pair.later.score.value) == pytest.approx((2.0, 2.0))
    assert [move.later.case for move in both.moves] == ["c1"]


def test_who_failed_in_one_run_has_no_change():
    both = track(
        timed("r1", 100.0), failed("alice/rope", run="r2"),
        timed("r1", 100.0, case="c2"), timed("r2", 100.0, case="c2"),
    )  # fmt: skip
    (pair,) = both.pairs
    assert pair.change is None
    assert [move.later.case for move in both.moves] == ["c2"]
    assert [(m.earlier.verdict, m.later.verdict) for m in both.verdicts] == [("PASSED", "TIMEOUT")]


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ((50.0, 100.0), (100.0, 50.0), [("bob/rope", "alice/rope")]),
        ((50.0, 100.0), (60.0, 90.0), []),
        ((95.0, [90.0, 100.0, 110.0]), (100.0, 50.0), []),  # a tie before
        ((50.0, 100.0), (105.0, [90.0, 100.0, 110.0]), []),  # a tie after
    ],
)
def test_a_swap_is_one_where_the_intervals_are_apart_in_both_runs(earlier, later, expected):
    rows = [timed(run, us, solution=solution)
            for run, both in (("r1", earlier), ("r2", later))
            for solution, us in zip(("alice/rope", "bob/rope"), both, strict=True)]  # fmt: skip
    assert [(a.later.solution, b.later.solution) for a, b in track(*rows).swapped] == expected


# --- as text --------------------------------------------------------------------------------------


def test_a_solution_shows_its_scores_and_the_case_that_moved_the_furthest():
    drawn = shown(
        timed("r1", 100.0), timed("r2", 100.0),
        timed("r1", 100.0, case="c2", direction="backward"),
        timed("r2", 125.0, case="c2", direction="backward"),
        timed("r1", 200.0, solution="eager/rope", peer=True),
        timed("r2", 200.0, solution="eager/rope", peer=True),
    )  # fmt: skip
    assert drawn.title == "rope: core"
    alice, eager = drawn.rows
    assert alice == (
        "alice/rope", "2.00", "1.79", "-10.6%", "-20.0%", "c2, with backward",
    )  # fmt: skip
    assert eager[0] == "(eager/rope)"


@pytest.mark.parametrize(
    ("cases", "note"),
    [
        ([(change, 100.0, 100.0) for change in (0.0, 0.029, -0.02, -0.05, 0.031)],
         "3 of 5 rows of cases above 20 µs moved by no more than 3 %;"
         " the largest moved by 5.0 % (alice/rope c3 forward)"),
        ([(0.0, 100.0, 100.0), (0.1, 21.0, 19.0), (0.0, 19.0, 21.0)],
         "1 of 1 rows of cases above 20 µs moved by no more than 3 %;"
         " the largest moved by 0.0 % (alice/rope c0 forward); shorter, and not counted: 2"),
        ([(0.5, 19.0, 19.0)],
         "no row of a case above 20 µs was timed in both runs; shorter, and not counted: 1"),
    ],
)  # fmt: skip
def test_the_rows_that_hardly_moved_are_counted_and_the_largest_named(cases, note):
    """Each case has the change of its ratio, and its time in both runs."""
    rows = [timed(run, us, eager, case=f"c{number}")
            for number, (change, first, second) in enumerate(cases)
            for run, us, eager in (("r1", first, 2 * first),
                                   ("r2", second, 2 * second * (1 + change)))]  # fmt: skip
    assert shown(*rows).footnotes[0] == note


def test_the_order_is_said():
    still = [timed(run, us, solution=solution) for run in ("r1", "r2")
             for solution, us in (("alice/rope", 50.0), ("bob/rope", 100.0))]  # fmt: skip
    assert "the order is the same but for ties" in shown(*still).footnotes
    swapped = [*still[:2],
               *(timed("r2", 150.0 - each.gpu["solution"].median, solution=each.solution)
                             for each in still[:2])]  # fmt: skip
    line = "swapped, although their intervals are apart: bob/rope and alice/rope"
    assert line in shown(*swapped).footnotes
    assert not any("order" in note for note in shown(*swapped).footnotes)
    alone = [each for each in still if each.solution == "alice/rope"]
    assert not any("order" in note for note in shown(*alone).footnotes)


def test_a_solution_whose_source_changed_is_marked():
    rows = [timed(run, 100.0, solution=solution) for run in ("r1", "r2")
            for solution in ("alice/rope", "bob/rope")]  # fmt: skip
    assert not any(
        table.EDITED in str(part) for part in (shown(*rows).rows, shown(*rows).footnotes)
    )
    rows[-1] = replace(rows[-1], sources="s2")
    drawn = shown(*rows)
    assert [cells[0] for cells in drawn.rows] == ["alice/rope", f"bob/rope{table.EDITED}"]
    assert drawn.footnotes[-1].startswith(table.EDITED)


def test_another_verdict_is_a_line_and_who_was_never_timed_has_no_row():
    drawn = shown(
        timed("r1", 100.0), timed("r2", 100.0),
        timed("r1", 100.0, solution="bob/rope"), failed("bob/rope", run="r2"),
        failed("carol/rope", run="r1"), failed("carol/rope", run="r2"),
    )  # fmt: skip
    assert [cells[0] for cells in drawn.rows] == ["alice/rope"]
    assert "bob/rope c1 forward: PASSED, then TIMEOUT" in drawn.footnotes
    assert not any("carol" in note for note in drawn.footnotes)


def test_the_terminal_shows_the_runs_what_changed_and_who_stands_out():
    rows = [timed("r1", 100.0, sources="s0"), timed("r2", 100.0, harness="h2"),
            timed("r2", 9.0, solution="alice/rotate_half", op="rotate_half")]  # fmt: skip
    given = results(*rows)
    text = printed(160, terminal.show_comparisons, given, compare(given, KNOWN),
                   only="alice/rope", force_terminal=True)  # fmt: skip
    for part in ("A GPU", "rope: run r1, then r2; between them changed the harness",
                 "not in two finished runs: rotate_half"):  # fmt: skip
        assert part in text
    (line,) = (line for line in text.splitlines() if f"alice/rope{table.EDITED}" in line)
    assert "\x1b[1;32m" in line, "bold green, marked or not"
