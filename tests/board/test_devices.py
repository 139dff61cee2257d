"""Several devices: the order of their boards, the README's short lines, the speeds side by side."""

from msgspec.structs import replace

from common import paths
from common.board import markdown
from common.board.devices import ordered
from common.board.ranking import About
from common.records.runs import Results
from tests.support import boards
from tests.support.boards import RUN, failed, row

BOTH = ("rope", "rotate_half")
ABOUT = {f"{name}/{op}": About("", "s1") for name in ("alice", "bob", "eager") for op in BOTH}


def measured(name, *runs, device="cuda"):
    """A device's records, given for each run its ops and its tier."""
    results = Results(path=paths.RESULTS / name.lower().replace(" ", "-"))
    for ops, tier in runs:
        run = f"{name}-{len(results.runs)}"
        results.runs.append(replace(RUN, run=run, device=device, device_name=name))
        results.rows.extend(row(f"alice/{op}", run=run, op=op, tier=tier) for op in ops)
        results.finished.add(run)
    return results


def of(name, *rows):
    """The records of a device with one finished run."""
    results = measured(name, ([], "board"))
    results.rows.extend(replace(row, run=f"{name}-0") for row in rows)
    return results


def devices(*results):
    return boards.devices(*results, about=ABOUT)


# --- the order ------------------------------------------------------------------------------------


def first(*results):
    return [each.path.name for each in ordered(results)]


def test_the_device_with_the_most_rows_stands_first_and_one_without_times_last():
    one = measured("one", (BOTH, "board"))
    other = measured("other", (["rope"], "board"), (BOTH, "plot"))
    laptop = measured("laptop", (BOTH, "board"), device="cpu")
    assert first(laptop, one, other) == first(laptop, other, one) == ["one", "other", "laptop"]


# --- the pages ------------------------------------------------------------------------------------

FAST = of("GPU (fast) 2", *(row(case=case, us=5.0) for case in ("c1", "c2", "c3")))
SLOW = of("A GPU", row(us=10.0), failed("bob/rope"))


def test_the_readme_shows_one_device_and_a_link_for_each_other():
    board = markdown.board(devices(SLOW, FAST))
    assert "### GPU (fast) 2" in board and "### A GPU" not in board
    assert "- [A GPU](LEADERBOARD.md#a-gpu)" in board.splitlines()
    assert "Other devices" not in markdown.board(devices(SLOW))
    shown = markdown.picture(devices(SLOW, FAST)[0])
    assert "on GPU (fast) 2](docs/plots/gpu-(fast)-2/overview.svg)" in shown
    nobody = of("A GPU", failed("bob/rope"))
    assert markdown.picture(devices(nobody)[0]) == ""


def test_the_leaderboard_has_each_devices_own_rankings():
    later = of("A GPU", row(us=10.0), row("bob/rope", us=4.0), row(case="c2", track="extended"))
    board = markdown.leaderboard(devices(later, FAST))
    for link in ("rope-core-on-a-gpu", "rope-extended-on-a-gpu", "rope-core-on-gpu-fast-2"):
        assert f"](#{link})" in board and link in boards.anchors(board)
    assert "| alice/rope | 1. 100.0%, 4.00× |" in board
    assert "| bob/rope | 1. 125.0%, 5.00× |" in board
