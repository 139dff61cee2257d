"""What `python -m tests.rates` makes of a sweep's lines."""

import sys

import pytest

from tests.rates import Run, row, timed

PRINTS = """
import sys, time
for _ in range(3):
    print("an answer", flush=True)
    time.sleep(0.2)
sys.exit({code})
"""


def test_a_run_has_the_time_of_each_line_and_of_the_end():
    run = timed([sys.executable, "-c", PRINTS.format(code=0)])
    first, second, third = run.answers
    assert first < second < third < run.whole - 0.1 and third - first > 0.3
    with pytest.raises(SystemExit, match="ended with 3"):
        timed([sys.executable, "-c", PRINTS.format(code=3)])


def test_efficiency_is_the_rate_of_all_over_that_of_as_many_alone():
    """A fleet's first answers come late and together, and its last when few are at work."""
    alone = Run([10 + 0.1 * each for each in range(100)], 21.0)
    steady = [19 + 0.06 * each for each in range(80)]
    both = Run([19.0] * 10 + steady + [30.0] * 10, 31.0)
    assert alone.rate == pytest.approx(10)
    assert row("local", 1, "kept", alone) == "| local | 1 | kept | 21.0 s | 10.0 s | 10.0 | – |"
    assert both.rate == pytest.approx(1 / 0.06)
    assert row("ray", 2, "kept", both, alone).endswith("| 16.7 | 0.83 |")
