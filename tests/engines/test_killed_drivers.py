"""A driver that is killed at any moment: the same command goes on, and the record is the same."""

import json
import random
import signal
from collections import Counter

import pytest

from common import paths
from common.records import runs
from tests.support import forked, killed
from tests.support.records import samples_of
from tests.support.waiting import LONGEST, wait_until

KILLS = 8
"""One in each of so many parts of the record."""
LINES = 4 * (killed.COUNT - 1)
"""Of a record that lacks the last case, less its first line."""


def bench(folder, lines=None):
    """Bench in a process of its own; with `lines`, kill it once its file has as many.

    Returns whether it came to its end.
    """
    process = forked.CONTEXT.Process(target=killed.bench, args=(folder, lines is not None))
    process.start()
    if lines is not None:
        assert wait_until(lambda: process.exitcode is not None or written(folder) >= lines)
        process.kill()
    process.join(LONGEST)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


def written(folder):
    """The lines of the unfinished record."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("results/*/*[!s].jsonl"))


def recorded(folder):
    """What a run recorded, but for times, the run's name and the device; and its samples."""
    results = runs.read(folder / "results" / "a-gpu")
    assert len(results.runs) == len(results.finished) == 1, "one run, and it has ended"
    rows = Counter((row.key, row.verdict, row.error, row.sources) for row in results.rows)
    samples = {
        (sample["solution"], sample["case"], sample["direction"])
        for path in runs.files(results.path)
        for sample in samples_of(path)
    }
    return rows, samples


@pytest.mark.slow
def test_a_killed_driver_is_gone_on_from(tmp_path):
    assert bench(tmp_path / "whole")
    expected, dice = recorded(tmp_path / "whole"), random.Random(7)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        part = (number + dice.random()) / KILLS
        assert not bench(folder, int(part * (LINES + 1)))
        assert bench(folder), "it goes on"
        assert recorded(folder) == expected


@pytest.mark.parametrize("kept", [3, -1])
def test_a_run_that_lacks_its_end_goes_on(tmp_path, monkeypatch, kept):
    """It was interrupted amid a case, or after its last row."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(killed, "COUNT", 2)
    killed.bench(tmp_path)
    (path,) = runs.files(tmp_path / "results" / "a-gpu")
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:kept]))
    killed.bench(tmp_path)
    again = path.read_bytes().splitlines(keepends=True)
    assert len(again) == len(whole) and again[:kept] == whole[:kept]
    keys = {
        (row["solution"], row["case"], row["direction"]) for row in map(json.loads, again[1:-1])
    }
    assert len(keys) == 2 * 2 * killed.COUNT
    assert json.loads(again[-1])["kind"] == "end"
