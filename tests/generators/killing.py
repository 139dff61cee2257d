"""Kill a station at random moments of a graded sweep, and compare with the sweep left alone.

    python -m tests.generators.killing                  # 20 times, two stations without a GPU
    python -m tests.generators.killing --device cuda    # two stations that share a GPU

Each verdict must come, once, and be the same; the group `ray` must be installed.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common.processes import parents
from tests.support.waiting import wait_until

NAME = b"ray::Actor"
"""How the title of a station's process begins."""


def descendants(process):
    """Return the processes that a process started, and those that these did."""
    own = [each for each, parent in parents() if parent == process]
    return own + [each for one in own for each in descendants(one)]


def stations(driver):
    """Return the processes of a driver's stations."""
    return [each for each in descendants(driver) if title(each).startswith(NAME)]


def title(process):
    """Return the words of a process, none where it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def graded(options, killed_after=None):
    """Return the verdicts of a sweep, the seconds that it took with stations, and its lines."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "verdicts.json"
        command = [sys.executable, "-m", "common", "grade", "--stations", "2", "--json", target]
        with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
            both = wait_until(lambda: len(found := stations(process.pid)) == 2 and found)
            began = time.monotonic()
            if killed_after is not None:
                time.sleep(killed_after)
                with contextlib.suppress(ProcessLookupError):  # the sweep has ended
                    os.kill(random.choice(both), signal.SIGKILL)
            _, lines = process.communicate()
        rows = [(each["solution"], each["case"], each["direction"], each["verdict"])
                for each in json.loads(target.read_text())]  # fmt: skip
    return rows, time.monotonic() - began, lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--op", default="rotate_half")
    parser.add_argument("--sample", default="60")
    given = parser.parse_args()
    options = ["--device", given.device, "--op", given.op, "--sample", given.sample]
    expected, seconds, _ = graded(options)
    print(f"{len(expected)} verdicts in {seconds:.1f} s, with nothing killed", flush=True)
    for _ in range(given.times):
        after = random.uniform(0, 0.8 * seconds)
        found, took, lines = graded(options, after)
        said = " | ".join(line for line in lines.splitlines() if "station" in line)
        print(f"killed after {after:.1f} of {took:.1f} s: {said or 'at no work'}", flush=True)
        assert len(found) == len(set(found)) and sorted(found) == sorted(expected)


if __name__ == "__main__":
    main()
