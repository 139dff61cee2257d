"""Honest solutions by unusual means are accused of nothing."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest

from common import ops
from common.grading.fork_server import ForkServer
from common.grading.sweep import Sweep
from common.solutions import Solution
from common.spec import Case
from common.verdicts import FINE
from tests.support import corpora as corpus
from tests.support.corpora import HONEST, WRONG

pytestmark = pytest.mark.slow


@dataclass
class Judged:
    """What the grader said of the solutions."""

    counts: corpus.Counts = field(default_factory=lambda: defaultdict(Counter))
    accusations: dict[Solution, list[str]] = field(default_factory=lambda: defaultdict(list))


def judge(
    several: Collection[Solution], device: str, seed: int, server: ForkServer | None = None
) -> Judged:
    """Grade the solutions on a sample of their cases.

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


@pytest.fixture(scope="module")
def judged(request, device, seed, together, two_connections):
    """Return a function that returns what the grader says of a solution and those beside it."""
    server = request.getfixturevalue("fork_server") if device == "cpu" else None

    @functools.cache
    def judge_all(several):
        return judge(several, device, seed, server)

    def judged(solution):
        several = together(solution) if device == "cuda" else HONEST
        return judge_all(tuple(each for each in several if each.op == solution.op))

    return judged


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_passes_and_is_not_accused(solution, judged):
    assert not judged(solution).accusations[solution]
    assert not corpus.harmed(solution, judged(solution).counts)


def test_an_accusation_shows(fork_server):
    """Of a kernel that earns it, judged in the same way."""
    (wrong,) = (each for each in WRONG if each.handle == "in_place")
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
