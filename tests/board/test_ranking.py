"""Boards from records alone, with numbers worked out by hand."""

import math

import pytest
from msgspec.structs import replace

from common.board.columns import ranking
from common.board.ranking import combined, limit, pair, rank, share, sustained_share
from common.records.lines import Summary
from tests.support.boards import ABOUT, failed, row, summary


def score(rows):
    return combined(list(map(pair, rows)))


def ranked(*rows):
    """The entries of the one track there is."""
    (track,) = rank(rows)
    return track.entries


def places(*rows):
    return [(entry.solution, entry.rank) for entry in ranked(*rows)]


# --- the score ------------------------------------------------------------------------------------


def test_score_is_the_geometric_mean_of_ratios_of_medians():
    quick = row(us=[1.0, 5.0, 100.0], eager=[40.0, 1.0, 80.0])  # 40 / 5
    assert score([quick, row(us=10.0, eager=20.0)]).value == pytest.approx(4.0)
    assert score([row(us=10.0, eager=20.0)] * 3).value == pytest.approx(2.0)
    assert score([row(us=8.0, eager=2.0), row(us=2.0, eager=8.0)]).value == pytest.approx(1.0)


def test_variances_of_both_times_and_of_all_rows_add_up_each_side_by_itself():
    noisy = Summary(10.0, 9.0, 12.0), Summary(20.0, 19.0, 22.0)
    sure = Summary(10.0, 10.0, 10.0), Summary(40.0, 40.0, 40.0)
    above = math.hypot(math.log(22 / 20), math.log(10 / 9))
    below = math.hypot(math.log(20 / 19), math.log(12 / 10))
    one = combined([noisy, sure])
    assert one.value == pytest.approx(math.sqrt(2 * 4))
    assert one.high == pytest.approx(one.value * math.exp(above / 2))
    assert one.low == pytest.approx(one.value / math.exp(below / 2))
    assert combined([noisy] * 2).high == pytest.approx(2 * math.exp(above / math.sqrt(2)))


def test_host_time_ranks_where_the_case_says_so():
    host = {"solution": summary(2.0), "eager": summary(6.0)}
    for clock, value in (("host", 3.0), ("gpu", 10.0)):
        (entry,) = ranked(row(us=1.0, eager=10.0, ranked_by=clock, host=host))
        assert entry.score.value == pytest.approx(value)


def test_share_of_the_slower_limit_is_by_gpu_time_and_the_worst_is_kept():
    rows = [row(us=20.0, copy=5.0, ranked_by="host"), row(us=10.0, copy=9.0, direction="backward")]
    assert [share(each) for each in rows] == [0.25, 0.9]
    (entry,) = ranked(*rows)
    assert entry.worst_share == rows[1], "host time has no such limit"
    assert limit(row(us=10.0, copy=9.0, dense=8.0)) == (9.0, "copy")
    assert limit(dense := row(us=10.0, copy=5.0, dense=8.0)) == (8.0, "dense")
    assert share(dense) == 0.8


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"carol": 50.0, "bob": [10.0, 11.0, 12.0], "alice": [9.0, 10.0, 11.0], "dave": 60.0},
         {"alice": 1, "bob": 1, "carol": 3, "dave": 4}),
        # carol reaches bob, the second of a group, and not its leader
        ({"alice": [10.0, 11.0, 12.0], "bob": [12.0, 13.0, 14.0], "carol": [14.0, 15.0, 16.0]},
         {"alice": 1, "bob": 1, "carol": 3}),
    ],
)  # fmt: skip
def test_who_reaches_a_leader_shares_the_place_and_the_next_is_skipped(times, expected):
    found = places(*(row(f"{name}/rope", us=us) for name, us in times.items()))
    assert found == [(f"{name}/rope", place) for name, place in expected.items()]


def test_who_lacks_a_cell_is_unranked_below_with_what_it_lacks():
    rows = [
        row("quick/rope", us=1.0),
        row("quick/rope", direction="backward", verdict="UNSUPPORTED", reason="no grad", gpu={}),
        row("slow/rope", us=99.0),
        row("slow/rope", us=99.0, direction="backward"),
        row("new/rope", us=1.0),
    ]
    slow, new, quick = ranked(*rows)
    assert (slow.rank, slow.covered, slow.missing, slow.lacks) == (1, 2, (), "")
    assert (quick.rank, quick.score, quick.covered) == (None, None, 1)
    assert quick.missing == (("c1", "backward"),)
    assert quick.lacks == "UNSUPPORTED: no grad (c1 backward)"
    assert (new.rank, new.covered, new.lacks) == (None, 1, "not measured yet")


def test_a_failure_lowers_coverage_and_is_named_before_what_is_unsupported():
    rows = [
        row("bob/rope", us=9.0, error=0.7),
        row("bob/rope", case="c2", verdict="UNSUPPORTED", gpu={}, error=None),
        failed("bob/rope", case="c3", reason="no answer within 60 s"),
    ]
    (bob,) = ranked(*rows)
    assert (bob.rank, bob.covered, len(bob.missing), bob.error) == (None, 1, 2, 0.7)
    assert bob.lacks == "TIMEOUT: no answer within 60 s (c3 forward, and 1 more)"


def test_who_answers_no_case_of_the_op_is_named_as_such():
    fields = {"verdict": "UNSUPPORTED", "reason": "bshd"}
    rows = [
        row("alice/rope"),
        failed("bob/rope", **fields),
        failed("bob/rope", case="c2", track="extended", **fields),
        failed("carol/rope", **fields),
        row("carol/rope", case="c2", track="extended"),
    ]
    core, extended = rank(rows)
    lacks = {entry.solution: entry.lacks for entry in core.entries}
    assert lacks["bob/rope"] == "answers no case: bshd"
    assert lacks["carol/rope"] == "UNSUPPORTED: bshd (c1 forward)"
    assert [e.lacks for e in extended.entries if e.solution == "bob/rope"] == [lacks["bob/rope"]]


def test_without_a_gpu_nobody_is_ranked():
    rows = [row(solution, gpu={}, host={}, twin=True) for solution in ("alice/rope", "bob/rope")]
    for entry in ranked(*rows):
        assert (entry.rank, entry.score, entry.worst_share) == (None, None, None)
        assert (entry.covered, entry.error) == (1, 0.5)


def test_a_track_is_ranked_by_its_own_cases_alone():
    rows = [row("alice/rope"), row("bob/rope"), failed("alice/rope", case="c2", track="extended")]
    rows += [row("bob/rope", case="c2", track="extended"), row("bob/rotate_half", op="rotate_half")]
    tracks = {(t.op, t.name): [(e.solution, e.rank) for e in t.entries] for t in rank(rows)}
    assert tracks == {
        ("rope", "core"): [("alice/rope", 1), ("bob/rope", 1)],
        ("rope", "extended"): [("bob/rope", 1), ("alice/rope", None)],
        ("rotate_half", "core"): [("bob/rotate_half", 1)],
    }


def test_a_tracks_cells_have_the_order_of_the_rows_though_a_solution_lacks_one():
    rows = [row("alice/rope", case=case) for case in ("c3", "c1")]
    rows[1:1] = [row("bob/rope", case=case) for case in ("c3", "c2", "c1")]
    (track,) = rank(rows)
    assert [case for case, _ in track.cells] == ["c3", "c2", "c1"]


# --- what else a row says -------------------------------------------------------------------------


def test_a_row_of_an_earlier_clock_is_ranked_beside_none_of_a_later_one():
    old, new = row("alice/rope", us=1.0), row("bob/rope", clock=2)
    assert places(old, replace(new, clock=1)) == [("alice/rope", 1), ("bob/rope", 2)]
    assert places(old, new) == [("bob/rope", 1), ("alice/rope", None)]
    last = ranked(old, new)[-1]
    assert last.lacks == "measured by an earlier version of the clock"
    assert last.covered == 0
    assert places(old) == [("alice/rope", 1)], "alone it is ranked by its own"


def test_a_row_without_times_makes_no_clock_old():
    """A solution that failed, and a row for which eager could not be timed."""
    old = row("alice/rope")
    assert places(old, failed("bob/rope", clock=2))[0] == ("alice/rope", 1)
    untimed = row("bob/rope", gpu={}, host={}, clock=2, reason="not timed: out of memory")
    assert places(old, untimed) == [("alice/rope", 1), ("bob/rope", None)]
    assert ranked(old, untimed)[-1].lacks == "not timed: out of memory"


APART = "eager's time apart from the run's other rows"


@pytest.mark.parametrize(
    ("clock", "times", "runs", "found"),
    [
        ("gpu", (20.0, 20.9, 19.1), "r1", False),
        ("gpu", (20.0, 20.9, 24.0), "r1", True),
        ("gpu", (20.0, 99.0), "r1", False),  # which of the two?
        ("gpu", (20.0, 20.9, 24.0), "r2", False),  # another run's
        ("host", (20.0, 20.0, 24.0), "r1", False),
        ("host", (20.0, 20.0, 26.0), "r1", True),
    ],
)
def test_a_row_whose_eager_is_apart_is_disturbed(clock, times, runs, found):
    rows = [
        row(f"{name}/rope", us=1.0, eager=eager, ranked_by=clock,
            host={"solution": summary(1.0), "eager": summary(eager)})
        for name, eager in zip(("alice", "bob", "carol"), times, strict=False)
    ]  # fmt: skip
    rows[-1] = replace(rows[-1], run=runs)
    disturbed = {entry.solution: list(entry.disturbed.values()) for entry in ranked(*rows)}
    assert disturbed.pop(rows[-1].solution) == [{clock: [APART]}] * found
    assert not any(disturbed.values())


def test_the_sustained_share_is_that_of_dense_products_that_run_on():
    times = {"solution": 8.0, "eager": 30.0, "dense": 6.0}
    (entry,) = ranked(row(dense=7.0, sustained=times))
    assert sustained_share(entry.worst_share) == pytest.approx(0.75)
    (plain,) = ranked(row())
    assert sustained_share(plain.worst_share) is None and plain.in_loop is None
    (small,) = ranked(row(sustained={"solution": 8.0, "eager": 16.0}))
    assert sustained_share(small.worst_share) is None and small.in_loop == pytest.approx(2.0)
    (track,) = rank([row(dense=7.0, sustained=times)])
    (cells,) = ranking(track, ABOUT, timed=True).rows
    assert "70% of dense, sustained 75% (c1)" in cells
