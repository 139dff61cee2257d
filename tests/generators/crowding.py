"""The time and the memory that a board of many solutions takes, from records to the page.

    python -m tests.generators.crowding    # 10,000 rows of one device

It prints the seconds by the wall, those of the processor, of all processes together, and the most
memory of one of them. docs/scale.md has what a core took.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support import crowd


def main():
    """Make a crowd, draw its board, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solutions", type=int, default=100)
    parser.add_argument("--devices", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = crowd.tree(Path(folder) / "tree", given.solutions, given.devices)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "common", "leaderboard"], cwd=root, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        took = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{given.solutions} solutions on {given.devices} devices: {took:.1f} s by the wall,"
          f" {used.ru_utime + used.ru_stime:.1f} s of the processor,"
          f" {used.ru_maxrss >> 10} MiB at most")  # fmt: skip


if __name__ == "__main__":
    main()
