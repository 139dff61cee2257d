"""The scale of a sweep: what its driver's work costs here, and simulated devices that sleep.

    python -m tests.generators.scaling    # the tables of docs/scale.md, in Markdown

The costs of the driver are measured. The devices are simulated, event by event: a case lasts as
long as one of the committed record did, drawn around its mean, and the driver takes one answer
after the other.
"""

import heapq
import os
import random
import tempfile
import time
from pathlib import Path

import msgspec

from common.board.ranking import rank
from common.paths import RESULTS
from common.records import runs
from common.records.lines import End, Record
from common.records.runs import RunWriter

DEVICES = (1, 10, 100, 1000)
SOLUTIONS = (1, 100, 10_000)
SPREAD = 0.5
"""The deviation of the logarithm of a case's time."""
SYNC, SYNCS = "a row synced to the disk, by the wall", 200
RECORD = RESULTS / "nvidia-h200"
"""The record that costs are measured with."""
SAMPLES = 100
"""Of each time of a row."""
CASES = 50
"""Of a solution."""


# --- costs ----------------------------------------------------------------------------------------


def seconds_a_row():
    """The wall time over the rows of the committed runs that tell it, timing and grading."""
    seconds = rows = 0
    for path in RESULTS.glob("nvidia-*/*.jsonl"):
        lines = runs.lines(path)
        if isinstance(lines[-1], End) and lines[-1].seconds:
            seconds += lines[-1].seconds
            rows += sum(isinstance(line, Record) for line in lines)
    return seconds / rows


def costs(folder):
    """The seconds of each step of the driver, a row."""
    begun, row, *_ = runs.lines(runs.files(RECORD)[-1])
    kept = len(runs.read(RECORD).rows)
    raw, samples = msgspec.json.encode(row), made_up_samples(row)
    file = RunWriter(folder / "record" / "20260101-r.jsonl")
    file.write(begun)
    steps = {
        "a worker's answer decoded": (lambda: msgspec.json.decode(raw, type=Record), kept, 1),
        "a row written, with its raw samples":
            (lambda: file.rows([row], [samples]), kept, 1),
        "a record merged, read in full": (lambda: runs.read(RECORD), 1, kept),
        "a record read and ranked": (lambda: rank(runs.read(RECORD).latest()), 1, kept),
    }  # fmt: skip
    found = {name: measured(call, calls) / rows for name, (call, calls, rows) in steps.items()}
    found[SYNC] = measured(synced(folder / "synced", raw), SYNCS, time.perf_counter)
    file.close()
    return found


def made_up_samples(row):
    """Raw samples of a timed row."""
    draw = random.Random(0)
    return {
        clock: {name: [draw.uniform(1, 2) * time.median for _ in range(SAMPLES)]
                for name, time in times.items()}
        for clock, times in (("gpu", row.gpu), ("host", row.host))
    }  # fmt: skip


def measured(call, number, clock=time.process_time):
    """The seconds of a call; of the processor, since other processes may share it."""
    began = clock()
    for _ in range(number):
        call()
    return (clock() - began) / number


def synced(path, raw):
    """Return a function that appends a line and waits for the disk."""
    file = path.open("ab", buffering=0)

    def write():
        file.write(raw)
        os.fsync(file.fileno())

    return write


# --- simulation -----------------------------------------------------------------------------------


def simulate(devices, cases, seconds, driver, seed=0):
    """The sweep's seconds, and the share of them in which the devices work.

    A device takes its next case once the driver has taken its last answer; the driver takes
    `driver` seconds for each, one after the other.
    """
    draw = random.Random(seed)
    lasting = [seconds * draw.lognormvariate(-SPREAD * SPREAD / 2, SPREAD) for _ in range(cases)]
    ends, free = [], 0.0
    for lasts in lasting:
        if len(ends) == devices:
            free = max(free, heapq.heappop(ends)) + driver
        heapq.heappush(ends, free + lasts)
    for end in sorted(ends):
        free = max(free, end) + driver
    return free, sum(lasting) / (devices * free)


def table(header, rows):
    """Print a table in Markdown; numbers stand at the right."""
    rules = ["---", *["---:"] * (len(header) - 1)]
    for row in (header, rules, *rows):
        print("|", " | ".join(map(str, row)), "|")
    print()


def duration(seconds):
    """Seconds in the unit that a reader wants."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def main():
    with tempfile.TemporaryDirectory() as folder:
        found = costs(Path(folder))
    steps = [(name, duration(used), duration(1e6 * used)) for name, used in found.items()]
    table(("step of the driver", "a row", "a million rows"), steps)
    decoded, written, *_ = found.values()
    case, kept = 2 * seconds_a_row(), 2 * (decoded + written)
    slow = kept + 2 * found[SYNC]
    print(f"A case, which is two rows, takes a device {duration(case)}. It takes the driver "
          f"{duration(kept)}, or {duration(slow)} where it syncs each row:")  # fmt: skip
    print(f"it keeps {case / kept:,.0f} devices busy, or {case / slow:,.0f}.\n")
    for title, driver in (("rows not synced", kept), ("each row synced", slow)):
        results = {(devices, solutions): simulate(devices, solutions * CASES, case, driver)
                   for devices in DEVICES for solutions in SOLUTIONS}  # fmt: skip
        header = (f"{solution:,} solution{'s' * (solution > 1)}" for solution in SOLUTIONS)
        rows = [(f"{devices:,}", *(_cell(*results[devices, solution]) for solution in SOLUTIONS))
                for devices in DEVICES]  # fmt: skip
        table((f"devices ({title})", *header), rows)


def _cell(seconds, efficiency):
    return f"{duration(seconds)}, {efficiency:.0%}"


if __name__ == "__main__":
    main()
