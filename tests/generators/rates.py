"""The rate of a graded sweep on one GPU of this machine and on all of them, by both engines.

    python -m tests.generators.rates                                    # the table, in Markdown
    python -m tests.generators.rates --only house,zetwhite --sample 100

One run follows the other, with nothing beside. The first, on all GPUs, compiles the kernels; it is
no part of the comparison. A GPU has the same number of cores in each run.
"""

import argparse
import dataclasses
import importlib.util
import os
import subprocess
import sys
import time

from common.commands import gpus
from common.engines.ray_engine import share_cores
from common.paths import ROOT
from common.processes import VISIBLE

HEADER = """\
| engine | GPUs | kernels | whole run | first answer after | answers a second | efficiency |
| --- | ---: | --- | ---: | ---: | ---: | ---: |"""


@dataclasses.dataclass(frozen=True)
class Run:
    """The seconds until each answer of a sweep, and until its end."""

    answers: list[float]
    whole: float

    @property
    def rate(self):
        """The answers a second, start included.

        Large cases come in the middle on one GPU, and elsewhere on several: a rate of the middle
        alone made two GPUs 3.6 times as fast as one.
        """
        return len(self.answers) / self.whole


def timed(command, now=time.monotonic):
    """Run a command that prints a line for each answer; `now` is a clock in seconds."""
    began, answers = now(), []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        answers += [now() - began for _ in process.stdout]
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Run(answers, now() - began)


def sweep(engine, names, cores, options):
    """Return the run of one engine on these GPUs, each with cores of its own."""
    before = os.sched_getaffinity(0)
    os.environ[VISIBLE] = ",".join(names)
    os.sched_setaffinity(0, {core for own in cores[: len(names)] for core in own})
    try:
        return timed([sys.executable, "-m", "common", "grade", "--tier", "matrix", "--op", "rope",
                      "--engine", engine, *options])  # fmt: skip
    finally:
        os.sched_setaffinity(0, before)


def row(engine, count, kernels, run, alone=None):
    """Return a line of the table; `alone` is the run on one GPU, in one process."""
    efficiency = f"{run.rate / (count * alone.rate):.2f}" if alone else "–"
    return (
        f"| {engine} | {count} | {kernels} | {run.whole:.1f} s | {run.answers[0]:.1f} s"
        f" | {run.rate:.1f} | {efficiency} |"
    )


def main(arguments):
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="house,lkm2835,zetwhite")
    parser.add_argument("--sample", default="2000")
    given = parser.parse_args(arguments)
    options = ["--only", given.only, "--sample", given.sample]
    names = gpus.visible()
    if not names:
        raise SystemExit("torch finds no GPU: there is nothing to compare")
    cores = share_cores(sorted(os.sched_getaffinity(0)), len(names))
    print(HEADER, flush=True)
    ray = importlib.util.find_spec("ray")
    first = sweep("ray" if ray else "local", names, cores, options)
    print(row("ray" if ray else "local", len(names), "compiled for the first time", first))
    alone = sweep("local", names[:1], cores, options)
    print(row("local", 1, "kept", alone), flush=True)
    if ray:
        every = sweep("ray", names, cores, options)
        print(row("ray", len(names), "kept", every, alone), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
