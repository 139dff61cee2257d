"""What `python -m tests.rates` makes of a sweep's lines."""

import json
import sys

import pytest

from tests.rates import Run, row, timed

PRINTS = """
import json, sys, time
for _ in range(3):
    print("an answer", flush=True)
    time.sleep(0.2)
json.dump(["PASSED"] * 6, open(sys.argv[1], "w"))
sys.exit({code})
"""


def test_a_run_counts_its_verdicts_between_its_first_and_its_last_answer(tmp_path):
    path = str(tmp_path / "verdicts.json")
    run = timed([sys.executable, "-c", PRINTS.format(code=0), path], path)
    assert run.verdicts == len(json.loads((tmp_path / "verdicts.json").read_text())) == 6
    assert 0.4 <= run.last - run.first < run.whole - 0.2
    with pytest.raises(SystemExit, match="ended with 3"):
        timed([sys.executable, "-c", PRINTS.format(code=3), path], path)


def test_efficiency_is_the_rate_of_all_over_that_of_as_many_alone():
    alone, both = Run(10.0, 20.0, 21.0, 1000), Run(12.0, 18.0, 20.0, 1080)
    assert row("local", 1, "kept", alone) == "| local | 1 | kept | 21.0 s | 10.0 s | 100.0 | – |"
    line = row("ray", 2, "kept", both, alone)
    assert line == "| ray | 2 | kept | 20.0 s | 12.0 s | 180.0 | 0.90 |"
