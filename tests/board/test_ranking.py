"""Boards from records alone, with numbers worked out by hand."""

import math

import pytest
from msgspec.structs import replace

from common.board.ranking import QUANTITIES, combined, limit, rank, share, sustained_share
from common.records.lines import Estimate
from tests.support.boards import failed, row, summary

FORWARD, BACKWARD, HOST, _, LOOP, *_ = QUANTITIES


def ranked(*rows):
    """The entries of the one track there is."""
    (track,) = rank(rows)
    return track.entries


def places(*rows):
    ranks = ((each.solution, each.scores.get(FORWARD)) for each in ranked(*rows))
    return [(solution, score and score.rank) for solution, score in ranks]


# --- the score ------------------------------------------------------------------------------------


def test_variances_of_both_times_and_of_all_rows_add_up_each_side_by_itself():
    noisy = Estimate(20.0, 19.0, 22.0), Estimate(10.0, 9.0, 12.0)
    sure = Estimate(80.0, 80.0, 80.0), Estimate(20.0, 20.0, 20.0)
    above = math.hypot(math.log(22 / 20), math.log(10 / 9))
    below = math.hypot(math.log(20 / 19), math.log(12 / 10))
    one = combined([noisy, sure])
    assert one.value == pytest.approx(math.sqrt(2 * 4))
    assert one.high == pytest.approx(one.value * math.exp(above / 2))
    assert one.low == pytest.approx(one.value / math.exp(below / 2))
    assert combined([noisy] * 2).high == pytest.approx(2 * math.exp(above / math.sqrt(2)))


def test_no_column_mixes_clocks_or_directions():
    """Each is over the rows of its own, and a share of the limit where one is measured."""
    host = {"solution": summary(2.0), "eager": summary(6.0)}
    loop = {"solution": 8.0, "eager": 16.0}
    dense = {"dense": 6.0, "one_mask": 7.5}
    (entry,) = ranked(
        row(us=10.0, copy=8.0),
        row(us=20.0, copy=10.0, direction="backward", sustained=loop | dense),
        row(case="small", ranked_by="host", host=host, us=1.0, sustained=loop),
    )
    found = {each.name: score.main.value for each, score in entry.scores.items()}
    assert found == pytest.approx({
        "GPU, forward": 0.8, "GPU, with backward": 0.5, "host, forward": 3.0,
        "in a loop, forward": 2.0, "in a loop, with backward": 0.75,
        "one mask, with backward": 0.8,
    })  # fmt: skip
    of_limit = [score.of_limit for score in entry.scores.values()]
    assert of_limit == [True, True, False, False, True, True]


def test_an_interval_spans_the_runs_of_the_same_source():
    rows = [row(us=10.0, copy=8.0), row("bob/rope", us=9.0, copy=7.5)]
    again = [row(us=10.0, copy=9.0, run="r0"), row(case="gone", run="r0")]
    (track,) = rank(rows, repeated=[*again, row("bob/rope", case="other", run="r0")])
    scores = {entry.solution: entry.scores[FORWARD] for entry in track.entries}
    alice, bob = scores["alice/rope"], scores["bob/rope"]
    assert alice.main.interval == pytest.approx((0.8, 0.9)) and alice.runs == 2
    assert bob.runs == 1 and bob.main.interval is None
    assert alice.rank == bob.rank == 1, "the runs overlap, within one they would not"


def test_share_of_the_slower_limit_is_by_gpu_time():
    rows = [row(us=20.0, copy=5.0, ranked_by="host"), row(us=10.0, copy=9.0, direction="backward")]
    assert [share(each) for each in rows] == [0.25, 0.9]
    assert limit(row(us=10.0, copy=9.0, dense=8.0)) == (9.0, "copy")
    assert limit(dense := row(us=10.0, copy=5.0, dense=8.0)) == (8.0, "dense")
    assert share(dense) == 0.8


def test_the_sustained_share_is_that_of_dense_products_that_run_on():
    times = {"solution": 8.0, "eager": 30.0, "dense": 6.0}
    assert sustained_share(row(dense=7.0, sustained=times)) == pytest.approx(0.75)
    assert sustained_share(row(sustained={"solution": 8.0, "eager": 16.0})) is None


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


NO_GRAD = {"verdict": "UNSUPPORTED", "reason": "no grad"}
FAILURE = failed("a/rope", case="c3", reason="no answer within 60 s")


@pytest.mark.parametrize(
    ("rows", "covered", "lacks"),
    [
        pytest.param([failed("a/rope", direction="backward", **NO_GRAD)], 1,
                     "UNSUPPORTED: no grad (c1 backward)", id="unsupported"),
        pytest.param([], 1, "not measured yet", id="not measured"),
        pytest.param([failed("a/rope", direction="backward", **NO_GRAD), FAILURE], 1,
                     "TIMEOUT: no answer within 60 s (c3 forward, and 1 more)",
                     id="a failure before what is unsupported"),
        pytest.param([row("a/rope", direction="backward", gpu={}, host={}, reason="not timed: x")],
                     2, "not timed: x", id="not timed"),
    ],
)  # fmt: skip
def test_who_lacks_a_cell_is_unranked_below_with_what_it_lacks(rows, covered, lacks):
    others = [row("z/rope", us=99.0), row("z/rope", us=99.0, direction="backward")]
    others += [row("z/rope", case="c3")] * (FAILURE in rows)
    whole, partial = ranked(row("a/rope", us=1.0), *rows, *others)
    assert (whole.solution, whole.missing, whole.lacks) == ("z/rope", (), "")
    assert whole.scores[BACKWARD].rank == 1 and BACKWARD not in partial.scores
    assert (partial.covered, partial.lacks) == (covered, lacks)
    if FAILURE not in rows:
        assert (partial.scores[FORWARD].rank, whole.scores[FORWARD].rank) == (1, 2)


def test_a_track_is_ranked_by_its_own_cases_in_the_order_of_the_rows():
    rows = [row("alice/rope", case=case) for case in ("c3", "c1")]
    rows[1:1] = [row("bob/rope", case=case) for case in ("c3", "c2", "c1")]
    extended = {"case": "c9", "track": "extended"}
    rows += [failed("alice/rope", **extended), row("bob/rope", **extended)]
    rows += [row(f"bob/{op}", op=op) for op in ("another", "rotate_half")]
    tracks = rank(rows)
    assert [case for case, _ in tracks[0].cells] == ["c3", "c2", "c1"]
    placed = {t.title: [(e.solution, e.scores[FORWARD].rank if e.scores else None)
                        for e in t.entries] for t in tracks}  # fmt: skip
    assert list(placed.items()) == [
        ("rope: core", [("bob/rope", 1), ("alice/rope", None)]),
        ("rope: extended", [("bob/rope", 1), ("alice/rope", None)]),
        ("rotate_half: core", [("bob/rotate_half", 1)]),
        ("another: core", [("bob/another", 1)]),
    ]


# --- clocks ---------------------------------------------------------------------------------------


def test_a_row_of_an_earlier_clock_is_ranked_beside_none_of_a_later_one():
    old, new = row("alice/rope", us=1.0), row("bob/rope", clock=2)
    assert places(old, replace(new, clock=1)) == [("alice/rope", 1), ("bob/rope", 2)]
    assert places(old, new) == [("bob/rope", 1), ("alice/rope", None)]
    last = ranked(old, new)[-1]
    assert last.lacks.startswith("measured by an earlier version of the clock")
    assert last.covered == 0
    untimed = row("bob/rope", gpu={}, host={}, clock=2, reason="not timed: out of memory")
    for other in (failed("bob/rope", clock=2), untimed):
        assert places(old, other) == [("alice/rope", 1), ("bob/rope", None)], "no time, no clock"
