"""The wrong kernels and the cheats on a GPU: what only shows there, and what must show there too.

Only what is asked for is graded: `-k rotate_half`, say, takes one op of four.
"""

import contextlib
import functools
from collections import Counter, defaultdict

import pytest

from common import ops
from common.grading import remarks
from common.grading.device import REPEATS
from common.grading.fork_server import ForkServer
from common.grading.sweep import Sweep
from common.verdicts import FINE
from tests.support import corpora as corpus
from tests.support.corpora import CHEATS, WITNESSED, WRONG, expected, promised
from tests.support.devices import TOGETHER

# on a GPU the host's memory is looked at four times a second: this one may take 64 GiB before that
TOO_LARGE = {"takes_all_memory"}
ALL = [each for each in (*WRONG, *CHEATS) if each.handle not in TOO_LARGE]
DEADLINE = 10.0
"""Seconds of work on one reply: a kernel that never ends is asked three times."""
pytestmark = pytest.mark.slow


def awaited(solution):
    """Return the verdicts that a kernel gets on some case: those on a GPU where it promises any.

    Without any it must pass: what shows in the interpreter alone promises `On a GPU: PASSED`.
    """
    there = promised(solution, "On a GPU")
    return ({there} if there else {*expected(solution).values()}) - FINE


@pytest.fixture(scope="module")
def verdicts(together, two_connections):
    """Return a function that returns a kernel's verdicts, until it has all that are awaited.

    It grades the kernels of a process at once, and the others beside them. Who passes is asked on
    a few cases, or on all where it fails in the interpreter. The large cases are for those that
    promise something of a GPU: only there do programs wait for others to end. No failure is asked
    again in a process of its own, since a driver under load takes a second for its CUDA context.
    """
    found = defaultdict(list)

    def take(op, group, concurrent, cases, overlap, repeats=0):
        asked = Counter()

        def skip(solution, case):
            wanted = awaited(solution) if solution in group else set()
            if wanted or promised(solution, "On a GPU"):
                return bool(wanted) and wanted <= said(found[solution])
            asked[solution] += 1
            return asked[solution] > WITNESSED

        with Sweep("cuda", deadline=DEADLINE, overlap=overlap, server=server) as sweep:
            for graded in sweep.grade(op, cases(op), [*group, *concurrent], skip, repeats):
                found[graded.solution] += graded.verdicts.values()

    @functools.cache
    def grade_all(name, several):
        op, of_op = ops.load(name), [each for each in ALL if each.op == name]
        group = [each for each in several if each in of_op] or of_op[:TOGETHER]
        take(op, group, corpus.BYSTANDERS, corpus.smoke, overlap=True)
        there = [each for each in group if promised(each, "On a GPU")]
        take(op, there, [], corpus.large, overlap=False, repeats=REPEATS)

    def verdicts(solution):
        grade_all(solution.op, together(solution))
        return found[solution]

    with contextlib.closing(ForkServer("cuda")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(remarks, "MOST_RECURRED", 0)
        yield verdicts


def said(found):
    return {each.verdict for each in found}


def told(found):
    """Return how often each verdict was given, with its reason: a line each in a failed test."""
    counts = Counter(f"{each.verdict}: {each.reason}"[:100] for each in found)
    return "\n".join(f"{count} x {verdict}" for verdict, count in counts.most_common())


@pytest.mark.parametrize("solution", ALL, ids=lambda solution: solution.name)
def test_is_caught(solution, verdicts):
    wanted, found = awaited(solution), verdicts(solution)
    assert wanted <= said(found) if wanted else found and said(found) <= FINE, told(found)


@pytest.mark.parametrize("solution", corpus.BYSTANDERS, ids=lambda solution: solution.name)
def test_bystander_is_untouched(solution, verdicts):
    """Some of the others leave their CUDA context unusable."""
    counts, found = defaultdict(Counter), verdicts(solution)
    for verdict in found:
        counts[solution, verdict.direction][verdict.verdict] += 1
    assert not corpus.harmed(solution, counts), told(found)
