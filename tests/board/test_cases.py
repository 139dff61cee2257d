"""What a small call is made of, with numbers worked out by hand."""

import pytest
from msgspec.structs import replace

from common.board.cases import parts
from tests.support.boards import failed, row, summary


def forward(solution="alice/rope", us=10.0, host=30.0, graph=8.0, **fields):
    """A row with all its parts; without a `graph`, one that could not be captured."""
    plain = row(solution, us=us, sustained={"solution": 12.0, "eager": 24.0}, **fields)
    replay = {"graph": summary([graph - 1, graph, graph + 5])} if graph else {}
    hosts = {"solution": summary([host, host, 99.0]), "eager": summary(40.0)}
    hosts |= {"no_grad": summary(host - 2)}
    return replace(plain, gpu=plain.gpu | replay, host=hosts)


def backward(solution="alice/rope", us=21.0, host=90.0, **fields):
    plain = row(solution, us=us, direction="backward", **fields)
    alone = {"backward": summary([11.0, 12.0, 17.0])}
    hosts = {"solution": summary(host), "eager": summary(80.0)}
    return replace(plain, gpu=plain.gpu | alone, host=hosts)


NOTE = "its CUDA graph does not follow its inputs"
NOTED = forward("bob/rope", host=31.0, graph=None, notes=(f"{NOTE}: output at [0]: 1.0",))


def test_each_part_is_a_median_in_its_column():
    (drawn,) = parts([backward(), NOTED, forward()])
    assert drawn.title == "c1, median µs" and drawn.footnotes == (f"{NOTE}: bob/rope",)
    assert dict(zip(drawn.header, drawn.rows[0], strict=True)) == {
        "solution": "alice/rope",
        "forward: host": "30.0",
        "no_grad: host": "28.0",
        "forward: GPU": "10.0",
        "CUDA graph: GPU": "8.0",
        "forward: loop": "12.0",
        "with backward: host": "90.0",
        "with backward: GPU": "21.0",
        "with backward: loop": "–",
        "backward alone: GPU": "12.0",
    }


UNTIMED = [failed("alice/rope", direction="backward"), failed("bob/rope")]
FIRST = [backward("dave/rope", host=1.0), forward("bob/rope", host=40.0),
         forward("alice/rope", us=500.0), backward("bob/rope", host=2.0)]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        pytest.param([forward(graph=None), *UNTIMED],
                     [("alice/rope", "30.0", "28.0", "10.0", "–", "12.0", "", "", "", "")],
                     id="a dash where it could not be captured, nothing where it was not timed"),
        pytest.param([replace(forward(), host={})],
                     [("alice/rope", "–", "–", "10.0", "8.0")], id="no host's time"),
        pytest.param(FIRST, [("alice/rope",), ("bob/rope",), ("dave/rope",)],
                     id="the least host time first, without a forward last"),
    ],
)  # fmt: skip
def test_which_rows_and_cells_there_are(rows, told):
    (drawn,) = parts(rows)
    assert [row[: len(each)] for row, each in zip(drawn.rows, told, strict=True)] == told


def test_the_cases_that_rank_by_host_time_are_shown_or_else_the_smallest():
    def cases(*rows):
        return [drawn.title for drawn in parts(rows)]

    small = [forward(case="c1", bytes=8), backward(case="c1", bytes=24)]
    large = [forward(case="c2", bytes=80), backward(case="c2", bytes=240)]
    assert cases(*large, *small) == ["c1, median µs"]
    hosted = [replace(each, case=case, ranked_by="host")
              for case in ("c3", "c4") for each in large]  # fmt: skip
    assert cases(*large, *hosted, *small) == ["c3, median µs", "c4, median µs"]
    assert cases(failed("alice/rope")) == []


def test_no_earlier_clocks_times_stand_beside_the_new_ones():
    (drawn,) = parts([row("bob/rope", us=4.0), row("alice/rope", clock=2)])
    assert [name for name, *_ in drawn.rows] == ["alice/rope"]
