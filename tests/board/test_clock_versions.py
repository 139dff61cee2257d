"""Rows of an earlier clock beside those of a later one: nothing sets their times side by side."""

import pytest
from msgspec.structs import replace

from common.board import markdown, table
from common.board.plots import sweeps
from common.board.ranking import rank
from common.board.table import About, parts
from common.records.lines import Selection
from common.records.runs import Results
from tests.support.boards import RUN, failed, row
from tests.support.plotted import bandwidth
from tests.support.plotted import row as plotted

ABOUT = {name: About("", "s1") for name in ("alice/rope", "bob/rope", "eager/rope")}
OLD = [row("alice/rope", us=5.0), row("bob/rope", us=4.0), row("eager/rope", us=20.0, peer=True)]
NOTE = "an earlier version of the clock measured"


def board(*new):
    """LEADERBOARD.md after a run by the first clock over all, and one by the second."""
    again = replace(RUN, run="r2", selection=Selection(only="alice"))
    rows = [*OLD, *(replace(each, run="r2", clock=2) for each in new)]
    return markdown.leaderboard([Results(None, [RUN, again], rows, {"r1", "r2"})], ABOUT)


@pytest.mark.parametrize(
    ("new", "place", "note"),
    [
        pytest.param([replace(each, gpu=row(us=10.0).gpu) for each in OLD],
                     "| 1 | alice/rope | 2.00 |", "", id="all measured anew"),
        pytest.param([row("alice/rope", us=10.0)], "| 1 | alice/rope | 2.00 |",
                     f"2 of the 3 solutions are not ranked: {NOTE} them; run bench again",
                     id="one measured anew"),
        pytest.param([failed("alice/rope")], "| 1 | bob/rope |", "", id="a failure"),
    ],
)  # fmt: skip
def test_what_the_old_clock_alone_measured_is_named_and_not_ranked(new, place, note):
    text = board(*new)
    assert place in text
    assert note in text and (NOTE in text) == ("| – | bob/rope | – |" in text) == bool(note)


def test_the_old_clocks_times_stand_in_no_table_beside_the_new_ones():
    old = row("bob/rope", us=4.0, copy=1.0, peak_memory=9)
    new = row("alice/rope", clock=2, peak_memory=1 << 20)
    (track,) = rank([old, new])
    (times,), (memory,) = table.times(track), table.memory(track)
    assert dict(times.rows) == {
        "alice/rope": "10.0", "bob/rope": "", "copy of the same bytes": "5.0",
    }  # fmt: skip
    assert dict(memory.rows) == {"alice/rope": "1.0 MiB", "bob/rope": ""}
    (drawn,) = parts([old, new])
    assert [name for name, *_ in drawn.rows] == ["alice/rope"]


def lines(*rows):
    """The solutions with a line on the one plot."""
    (plot,) = sweeps.plots(rows)
    return {name: set(line) for name, line in plot.panels[0].lines.items()}


def test_a_plot_keeps_to_the_latest_clock_of_its_own_rows():
    old = [plotted(bandwidth(s), "bob/rope") for s in (32, 64)]
    assert lines(*old, plotted(bandwidth(32), clock=2)) == {"alice/rope": {32}}
    later = plotted(bandwidth(64), clock=2, tier="board")
    assert lines(*old, later) == {"bob/rope": {32, 64}}, "a later board takes no sweep away"
