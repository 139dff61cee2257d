"""Several devices: the order of their boards, the README's short lines, the speeds side by side."""

import pytest
from msgspec.structs import replace

from common import paths
from common.board import markdown
from common.board.devices import date, devices, ordered, side_by_side
from common.board.table import About
from common.records.lines import SCHEMA, LeftOut, Selection
from common.records.runs import Results
from tests.support.boards import RUN, failed, row
from tests.support.markdown import anchors

BOTH = ("rope", "rotate_half")
NAMES = ("alice", "bob", "eager")


def about(*digests):
    return {f"{name}/{op}": About("", "s1") for name in NAMES for op in BOTH} | dict(digests)


def measured(name, *runs, device="cuda"):
    """A device's records, given for each run its day, its ops, and whatever is unusual of it."""
    results = Results(path=paths.RESULTS / name.lower().replace(" ", "-"))
    for day, ops, *unusual in runs:
        run = f"{name}-{len(results.runs)}"
        only = "alice" if "some" in unusual else None
        selection = Selection(only=only, tier="plot" if "plot" in unusual else "board")
        begun = replace(RUN, run=run, device=device, device_name=name, selection=selection)
        results.runs.append(begun)
        results.names[run] = f"202611{day:02}T080000.000000Z-{run}.jsonl"
        for op in ops:
            results.rows.append(row(f"alice/{op}", run=run, op=op, tier=selection.tier))
        if "interrupted" not in unusual:
            results.finished.add(run)
    return results


def first(*boards):
    return [results.path.name for results in ordered(boards)]


# --- the order ------------------------------------------------------------------------------------


WHOLE = (1, BOTH)


@pytest.mark.parametrize(
    ("first_runs", "second_runs"),
    [
        pytest.param([(2, BOTH)], [WHOLE], id="measured whole last"),
        pytest.param([(2, BOTH)], [WHOLE, (3, ["rope"])], id="an op again makes none newer"),
        pytest.param([(3, ["rope"]), (4, ["rotate_half"])], [(2, BOTH)], id="one run an op"),
        *(pytest.param([WHOLE], [(8, ["rope"]), (9, BOTH, unusual)], id=f"lacks an op: {unusual}")
          for unusual in ("some", "interrupted", "plot")),
    ],
)  # fmt: skip
def test_the_device_with_the_newest_whole_measurement_stands_first(first_runs, second_runs):
    one, other = measured("one", *first_runs), measured("other", *second_runs)
    assert first(one, other) == first(other, one) == ["one", "other"]


def test_an_op_that_is_left_out_is_measured_and_a_device_without_times_stands_last():
    small = measured("small", (2, ["rope"]))
    small.left_out_lines.append(left_out("small-0", "rotate_half"))
    laptop = measured("laptop", (9, BOTH), device="cpu")
    assert first(laptop, measured("large", (1, BOTH)), small) == ["small", "large", "laptop"]


def test_the_date_is_that_of_the_latest_run_on_the_board():
    assert date(measured("gpu", (7, BOTH), (8, ["rope"]), (9, BOTH, "plot"))) == "2026-11-08"
    assert date(Results(None, [RUN], [row()])) == ""


# --- side by side ---------------------------------------------------------------------------------


def left_out(run, op, case="c9"):
    return LeftOut(schema=SCHEMA, run=run, op=op, case=case, reason="needs 9 GiB, 7.8 GiB free")


def of(name, *rows, day=1):
    """The records of a device with one finished run."""
    results = measured(name, (day, []))
    results.rows.extend(replace(row, run=f"{name}-0") for row in rows)
    return results


def tables(*boards):
    return side_by_side(devices(boards, about()), about())


def test_speeds_stand_side_by_side_in_the_order_of_the_first_device():
    large = of(
        "Large", row(us=10.0), row("bob/rope", us=5.0), row("eager/rope", us=20.0, peer=True)
    )
    small = of("Small", row(us=5.0), failed("bob/rope"), row("eager/rope", us=20.0, peer=True))
    large.rows.append(row("alice/rotate_half", op="rotate_half", run="Large-0"))
    rope, rotate_half = tables(large, small)
    assert rope.title == "rope: core, × eager"
    assert rope.header == ("solution", "Large", "Small")
    assert rope.rows == (
        ("bob/rope", "4.00", "–"),
        ("alice/rope", "2.00", "4.00"),
        ("(eager/rope)", "1.00", "1.00"),
    )
    assert rotate_half.rows == (("alice/rotate_half", "2.00", "–"),)
    assert not rope.footnotes


def test_who_only_the_second_device_ranks_stands_last():
    first = of("A", row(us=10.0), failed("bob/rope"), day=2)
    drawn, *_ = tables(first, of("B", row("bob/rope", us=1.0)))
    assert drawn.rows == (("alice/rope", "2.00", "–"), ("bob/rope", "–", "20.00"))


SMALL = of("B", row())
SMALL.left_out_lines.append(left_out("B-0", "rope", "c2"))


@pytest.mark.parametrize(
    ("one", "other", "speeds", "note"),
    [
        (of("A", row(), day=2), of("B", row(sources="old")), ("2.00", "†2.00"),
         "† measured before its source last changed"),
        (of("A", row(), row(case="c2"), day=2), SMALL, ("2.00", "2.00"),
         "missing cases: c2 on B"),
        (of("A", row(clock=1), day=2), of("B", row(clock=2)), ("2.00", "2.00"),
         "different versions of the clock measured the devices: A by 1, B by 2"),
    ],
    ids=["an older source", "a case left out", "another clock"],
)  # fmt: skip
def test_what_sets_two_devices_apart_is_said(one, other, speeds, note):
    drawn, *_ = tables(one, other)
    assert drawn.rows == (("alice/rope", *speeds),)
    assert drawn.footnotes == (note,)


# --- the pages ------------------------------------------------------------------------------------

FAST = of("GPU (fast) 2", row(us=5.0), day=22)
SLOW = of("A GPU", row(us=10.0), failed("bob/rope"))


def test_the_readme_shows_one_device_and_a_line_for_each_other():
    board = markdown.board([SLOW, FAST], about())
    assert "### GPU (fast) 2" in board and "### A GPU" not in board
    assert "- [A GPU](LEADERBOARD.md#a-gpu), 2026-11-01: alice/rope 2.00" in board.splitlines()
    assert "Other devices" not in markdown.board([SLOW], about())


def test_a_device_without_a_ranked_solution_has_a_line_and_no_picture():
    nobody = of("A GPU", failed("bob/rope"))
    assert "2026-11-01: no solution is ranked" in markdown.board([FAST, nobody], about())
    assert markdown.picture([nobody], about()) == ""
    shown = markdown.picture([SLOW, FAST], about())
    assert "on GPU (fast) 2](docs/plots/gpu-(fast)-2/overview.svg)" in shown


def test_the_readmes_links_lead_to_sections_of_the_leaderboard():
    board = markdown.board([FAST, SLOW, of("Third", row())], about())
    linked = {part.split(")")[0] for part in board.split("LEADERBOARD.md#")[1:]}
    assert linked == {"a-gpu", "third"}
    assert linked < anchors(markdown.leaderboard([FAST, SLOW, of("Third", row())], about()))
    turned = markdown.board([measured("z", (30, ["rope"])), FAST], about())
    assert "(LEADERBOARD.md#gpu-fast-2)" in turned


def test_a_later_device_has_a_column_of_its_speeds_in_the_leaderboards_rankings():
    later = of("A GPU", row(us=10.0), row("bob/rope", us=4.0), row(case="c2", track="extended"))
    board = markdown.leaderboard([later, FAST], about())
    assert "|  | solution | × eager | on A GPU | worst share of limit |" in board
    assert "| 1 | alice/rope | 4.00 ± 0.00 | 2.00 |" in board.replace("4.00 |", "4.00 ± 0.00 |")
    assert "| – | bob/rope |  | 5.00 |" in board, "the later device alone ranks it"
    assert board.index("### rope: core") < board.index("## A GPU") < board.index("### rope: ext")
    assert board.count("### rope: core") == 1
    assert "| on " not in markdown.leaderboard([later], about())


def test_the_contents_link_every_heading_of_the_leaderboard():
    board = markdown.leaderboard([SLOW, FAST], about())
    contents = board.partition("*× eager*")[0]
    linked = {part.split(")")[0] for part in contents.split("](#")[1:]}
    assert linked == anchors(board) - {"leaderboard"}
    assert {"gpu-fast-2", "rope-core", "a-gpu"} <= linked
