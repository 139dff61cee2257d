"""Honest solutions by unusual means are accused of nothing, and neither is anybody else under load.

    nox -s harness -- tests/corpus/test_honest.py --rounds 5

grades them five times in a row beside busy processes, each time on other cases and with every
contributor and peer.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import pytest

from common import ops, solutions
from common.grading.fork_server import ForkServer
from common.grading.sweep import Sweep
from common.paths import ROOT
from common.solutions import Solution
from common.spec import Case
from common.verdicts import FINE
from tests.support import corpora as corpus
from tests.support.corpora import HONEST

pytestmark = pytest.mark.slow

BUSY = "while True: pass"


@dataclass
class Judged:
    """What the grader said of the solutions."""

    counts: corpus.Counts = field(default_factory=lambda: defaultdict(Counter))
    accusations: dict[Solution, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, other: Judged) -> None:
        """Add another round's verdicts."""
        for key, counter in other.counts.items():
            self.counts[key] += counter
        for solution, lines in other.accusations.items():
            self.accusations[solution] += lines


def judge(
    several: Collection[Solution], device: str, seed: int, server: ForkServer | None = None
) -> Judged:
    """Grade the solutions on a sample of their cases, in new processes.

    One that answers few kinds of cases is asked the others too, until it has passed. On a GPU the
    cases whose views take gigabytes are left out: tests of both kinds share its memory.
    """
    judged = Judged()
    with Sweep(device, overlap=True, server=server) as sweep:
        for op in map(ops.load, sorted({solution.op for solution in several})):
            smoke = [case for case in op.cases("smoke") if device == "cpu" or not case.far_bytes]
            chosen = [case for case in corpus.sample(op, seed) if case in smoke]
            others = [case for case in smoke if case not in chosen]

            def skip(solution: Solution, case: Case, chosen: list[Case] = chosen) -> bool:
                return case not in chosen and not corpus.harmed(solution, judged.counts)

            for graded in sweep.grade(op, chosen + others, several, skip):
                for direction, verdict in graded.verdicts.items():
                    judged.counts[graded.solution, direction][verdict.verdict] += 1
                    if verdict.verdict not in FINE:
                        line = f"{graded.case.name} {direction}: {verdict.verdict} {verdict.reason}"
                        judged.accusations[graded.solution].append(line)
    return judged


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes busy."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def everyone(rounds: int) -> list[Solution]:
    """Return the honest set; contributors and peers, whom test_solutions.py grades, under load."""
    return HONEST if rounds == 1 else [*HONEST, *solutions.everyone()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "judged_one" in metafunc.fixturenames:
        several = everyone(metafunc.config.getoption("rounds"))
        ids = [solution.name for solution in several]
        metafunc.parametrize("judged_one", several, ids=ids)


@pytest.fixture(scope="module")
def judged(device, pytestconfig, together, two_connections):
    """Return a function that returns what the grader says of a solution and those beside it."""
    rounds = pytestconfig.getoption("rounds")

    @functools.cache
    def judge_all(several):
        judged = Judged()
        with load(2 * len(os.sched_getaffinity(0)) if rounds > 1 else 0):
            for seed in range(rounds):
                judged.add(judge(several, device, seed))
        return judged

    def judged(solution):
        several = together(solution) if device == "cuda" else everyone(rounds)
        return judge_all(tuple(each for each in several if each.op == solution.op))

    return judged


def test_is_not_accused(judged_one, judged):
    judged = judged(judged_one)
    assert not judged.accusations[judged_one]
    assert judged.counts[judged_one, "forward"], "was not graded at all"


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_passes(solution, judged):
    assert not corpus.harmed(solution, judged(solution).counts)


def test_an_accusation_shows(fork_server):
    """Of a kernel that earns it, judged in the same way."""
    (wrong,) = solutions.select(
        solutions.discover(ROOT / "tests" / "corpus" / "wrong"), only="in_place"
    )
    judged = judge([wrong], "cpu", 0, fork_server)
    assert any("MUTATED_INPUT" in line for line in judged.accusations[wrong])
    assert corpus.harmed(wrong, judged.counts)


@pytest.mark.parametrize("op", [*map(ops.load, ops.names())], ids=lambda op: op.name)
def test_a_sample_shows_every_option(op):
    everything = set().union(*map(corpus.shown, op.cases("smoke")))
    samples = [corpus.sample(op, seed) for seed in range(3)]
    assert all(set().union(*map(corpus.shown, cases)) == everything for cases in samples)
    assert samples[0] != samples[1] and len(samples[0]) < len(list(op.cases("smoke")))


def test_corpus_is_large_enough():
    """An op whose file is new has eager's solution, which follows from it, and needs none here."""
    assert len(HONEST) >= 40
    assert {solution.op for solution in HONEST} >= {
        "rope", "rotate_half", "masked_linear", "masked_ffn"
    }  # fmt: skip
    assert len({solution.note for solution in HONEST}) == len(HONEST)


def test_the_docs_show_it(judged, device, pytestconfig):
    """`nox -s harness -- --write-docs` writes it."""
    if device == "cuda":
        pytest.skip("the page shows the verdicts without a GPU")
    counts = {}
    for solution in HONEST:
        counts |= judged(solution).counts
    table = corpus.table(HONEST, counts)
    assert corpus.in_the_docs("honest", table, pytestconfig.getoption("write_docs"))
