"""What `python -m tests.generators.rates` makes of a sweep's lines."""

import itertools
import sys

import pytest

from tests.generators.rates import Run, row, timed

PRINTS = """
import signal, sys
signal.alarm(300)
for number in range(3):
    print("an answer", flush=True)
    while open(sys.argv[1]).read() != str(number + 1):
        pass
sys.exit({code})
"""


def test_a_run_has_the_time_of_each_line_and_of_the_end(tmp_path):
    """The next line comes once the clock was read at the one before."""

    def run(code):
        times = itertools.count()

        def now():
            time = next(times)
            (tmp_path / "new").write_text(str(time))
            (tmp_path / "new").replace(tmp_path / "read")
            return 100.0 + 2 * time

        command = [sys.executable, "-c", PRINTS.format(code=code), str(tmp_path / "read")]
        return timed(command, now)

    assert run(0) == Run([2.0, 4.0, 6.0], 8.0)
    with pytest.raises(SystemExit, match="ended with 3"):
        run(3)


def test_efficiency_is_the_rate_of_all_over_that_of_as_many_alone():
    alone = Run([10 + 0.1 * each for each in range(100)], 20.0)
    both = Run([9 + 0.02 * each for each in range(100)], 12.5)
    assert row("local", 1, "kept", alone) == "| local | 1 | kept | 20.0 s | 10.0 s | 5.0 | – |"
    assert row("ray", 2, "kept", both, alone).endswith("| 8.0 | 0.80 |")
