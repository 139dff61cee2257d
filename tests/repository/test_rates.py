"""What `python -m tests.generators.rates` makes of a sweep's lines."""

import sys

import pytest

from tests.generators.rates import Run, row, timed

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
    alone = Run([10 + 0.1 * each for each in range(100)], 20.0)
    both = Run([9 + 0.02 * each for each in range(100)], 12.5)
    assert row("local", 1, "kept", alone) == "| local | 1 | kept | 20.0 s | 10.0 s | 5.0 | – |"
    assert row("ray", 2, "kept", both, alone).endswith("| 8.0 | 0.80 |")
