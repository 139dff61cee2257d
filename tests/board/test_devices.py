"""Several devices: the README's links, and the boards one after the other."""

from msgspec.structs import replace

from common import paths
from common.board import markdown
from common.board.ranking import About
from common.records.runs import Results
from tests.support import boards
from tests.support.boards import RUN, failed, row

ABOUT = {f"{name}/rope": About("", "s1") for name in ("alice", "bob", "eager")}


def of(name, *rows):
    """The records of a device with one finished run."""
    path, run = paths.RESULTS / name.lower().replace(" ", "-"), f"{name}-0"
    begun = replace(RUN, run=run, device="cuda", device_name=name)
    return Results(path, [begun], [replace(row, run=run) for row in rows], {run})


def devices(*results):
    return boards.devices(*results, about=ABOUT)


FAST = of("GPU (fast) 2", row(us=5.0))
SLOW = of("A GPU", row(us=10.0), failed("bob/rope"))


def test_the_readme_shows_one_device_and_a_link_for_each_other():
    board = markdown.board(devices(FAST, SLOW))
    assert "### GPU (fast) 2" in board and "### A GPU" not in board
    assert "- [A GPU](LEADERBOARD.md#a-gpu)" in board.splitlines()
    assert "Other devices" not in markdown.board(devices(SLOW))
    shown = markdown.picture(devices(FAST, SLOW)[0])
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
