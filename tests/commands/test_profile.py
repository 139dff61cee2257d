"""What `profile` concludes from samples, what it prints and writes; the GPU's part is made up."""

import pytest
from msgspec.structs import replace

from common import ops
from common.commands import profile
from common.commands.profile import times
from common.paths import CONTRIBUTORS
from common.records.runs import Results
from common.solutions import Solution
from tests.support import boards

ROPE = ops.load("rope")
LONG = "sbhd-16384x1x8x256-float32"
HOUSE = Solution(CONTRIBUTORS / "house" / "rope.py", "rope")


def row(us=20.0, host=5.0, **fields):
    hosts = {"solution": host, "eager": 5.0}
    times = {"copy": 10.0, "host": {name: boards.summary(us) for name, us in hosts.items()}}
    return boards.row("house/rope", us, 50.0, **times | fields)


@pytest.mark.parametrize(
    ("measured", "binds"),
    [(row(), "memory"), (row(dense=9.0), "memory"), (row(host=20.0), "memory"),
     (row(dense=11.0), "arithmetic"),
     (row(host=21.0), "launch"), (row(host=21.0, dense=11.0), "launch")],
)  # fmt: skip
def test_the_host_binds_where_it_is_slower_and_else_the_slower_limit(measured, binds):
    assert times(measured)[-1] == binds


def test_a_share_is_of_the_slower_limit():
    found = times(row(dense=15.0))
    assert found == ["20.0", "5.0", "dense 15.0", "75%", "", "arithmetic"]


def test_each_direction_is_a_line(capsys):
    """As if the first board case of rope had been timed."""
    timed = [row(case=LONG), row(case=LONG, direction="backward", us=40.0, host=90.0)]
    gpu = replace(boards.RUN, device_name="NVIDIA H200")
    profile.show(Results(None, [gpu], timed), [HOUSE])
    lines = capsys.readouterr().out.splitlines()
    forward, backward = (line.split() for line in lines if line.startswith("sbhd"))
    assert forward[2:5] == ["285.2", "0.109", "0.382"]
    assert forward[5:7] == ["20.0", "5.0"]
    assert forward[7:10] == ["copy", "10.0", "50%"]
    assert (forward[-1], backward[-1]) == ("memory", "launch")
    assert lines[-1].endswith(f"standalone {HOUSE.path} rope CASE")
