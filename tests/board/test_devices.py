"""Several devices: the README's links, and the boards one after the other."""

import pytest
from msgspec.structs import replace

from common import paths
from common.board import markdown
from common.board.devices import about_solutions, tuned_on
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


@pytest.mark.parametrize(
    ("device", "version", "how"),
    [
        ("NVIDIA H200", "0.6.5", "tuned by its own search"),
        ("NVIDIA H200", "0.6.4", "as installed, without a search"),
        ("NVIDIA H100 80GB HBM3", "0.6.5", "as installed, without a search"),
    ],
)
def test_a_board_says_whose_own_search_is_kept_for_its_device_and_version(device, version, how):
    names = ["house/rope", "quack/masked_ffn", "quack/rope"]
    results = of(device, *(row(name, peer=name.startswith("quack")) for name in names))
    results.runs[0] = replace(results.runs[0], versions={"quack-kernels": version})
    about = tuned_on(results, about_solutions(names))
    board = markdown.leaderboard(boards.devices(results, about=about))
    assert f"quack's gated, grouped products, {how}." in board
    assert f"\n{how}: (quack/masked_ffn)\n" in board
