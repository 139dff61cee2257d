"""Every kernel of `wrong` gets its promised verdict, is told no wrong cause and harms nobody.

All are graded on the smoke cases until they are caught, as `check` does, and then on some
that are small; cheats with wrong results, and kernels that must not compile, on some. Kernels
are compiled in some of the cases.
"""

import functools
from collections import Counter, defaultdict

import pytest

from common import ops
from common.grading import diagnosis
from common.grading.compiling import Compiler
from common.grading.grade import grade_case
from common.grading.sweep import Graded, Sweep
from common.paths import ROOT
from tests.support import corpora as corpus
from tests.support import diagnoses
from tests.support.corpora import BYSTANDERS, WITNESSED, WRONG, expected, promised

pytestmark = pytest.mark.slow

CHEATS = [
    solution for solution in corpus.CHEATS if "INCORRECT_NUMERICAL" in expected(solution).values()
]
ENDLESS = [solution for solution in WRONG if "TIMEOUT" in expected(solution).values()]
UNCOMPILED = [solution for solution in WRONG if "COMPILE_ERROR" in expected(solution).values()]
WITH_CAUSE = {solution for solution in WRONG if promised(solution, "Cause")}
SAMPLE_STEP = 5
"""One smoke case in so many is asked of a cheat and of a kernel that does not compile; of others
one in twice as many is compiled."""
AFTERWARDS, OF_A_CAUSE = 12, 3
"""One small smoke case in so many is asked of a kernel that is caught, and of one that promises its
cause, which several cases decide."""
LARGE = 100_000
"""Bytes of a case that the interpreter takes a second for, or gigabytes where views are far."""
SOON = 1.0
"""Seconds of work that a kernel without an end is given; it takes them all in several cases."""


def is_large(op, case):
    return op.work(case, "forward").bytes + case.far_bytes > LARGE


@functools.cache
def sampled(op):
    """Return one smoke case in SAMPLE_STEP of the op with this name."""
    return list(corpus.smoke(ops.load(op)))[::SAMPLE_STEP]


@pytest.fixture(scope="module")
def answers(fork_server):
    """Return every answer of the kernels, and some of the cheats and of the bystanders."""
    answers, seen = [], defaultdict(set)
    awaited = {each: {*expected(each).items()} for each in WRONG}
    everyone = [*WRONG, *CHEATS, *BYSTANDERS]
    with Compiler("cpu") as compiler:

        def judge(problem, worker, repeats):
            some = sampled(problem.op.name)[::2]
            compiled = worker.solution in UNCOMPILED or problem.case in some
            if worker.solution in ENDLESS:
                worker.deadline = SOON
            verdicts = grade_case(problem, worker, repeats, keep=True)
            if not compiled:
                return verdicts
            return compiler.submit(Graded(worker, problem, verdicts)).result().verdicts

        with Sweep("cpu", deadline=corpus.DEADLINE, server=fork_server, grade=judge) as sweep:
            for op in map(ops.load, sorted({solution.op for solution in everyone})):
                cases = sorted(corpus.smoke(op), key=functools.partial(is_large, op))
                some = {**dict.fromkeys((*CHEATS, *UNCOMPILED), sampled(op.name)),
                        **dict.fromkeys(BYSTANDERS, cases[:WITNESSED])}  # fmt: skip

                def skip(solution, case, op=op, some=some, cases=cases):
                    caught = solution in awaited and awaited[solution] <= seen[solution]
                    step = OF_A_CAUSE if solution in WITH_CAUSE else AFTERWARDS
                    left_out = cases.index(case) % step or is_large(op, case)
                    return case not in some.get(solution, cases) or (caught and left_out)

                for graded in sweep.grade(op, cases, everyone, skip):
                    answers.append(graded)
                    seen[graded.solution] |= {
                        (each, verdict.verdict) for each, verdict in graded.verdicts.items()
                    }
    return answers


@pytest.fixture(scope="module")
def counts(answers):
    return corpus.count(answers, defaultdict(Counter))


@pytest.fixture(scope="module")
def causes(answers):
    """Return the causes of each kernel, by its name; the two directions may have one each."""
    causes = defaultdict(list)
    for cause in diagnosis.causes(answers):
        causes[cause.solution].append(cause)
    return causes


@pytest.fixture(scope="module")
def named(answers, causes, fork_server):
    """Return the line that `check` prints on each kernel."""
    ours = {solution.name for solution in WRONG}
    kept = [answer for answer in answers if answer.solution.name in ours]
    return diagnoses.lines(kept, causes, fork_server)


@pytest.mark.parametrize("solution", WRONG, ids=lambda solution: solution.handle)
def test_is_caught(solution, counts):
    assert not corpus.wrongly_judged(solution, counts)


@pytest.mark.parametrize("solution", WRONG + CHEATS, ids=lambda solution: solution.handle)
def test_no_kernel_is_told_a_wrong_cause(solution, causes):
    told = {", or: ".join(cause.mistakes) for cause in causes[solution.name]}
    assert told <= {promised(solution, "Cause")}


def test_nine_in_ten_are_told_their_cause(causes):
    missed = [each.handle for each in WITH_CAUSE if not causes[each.name]]
    assert len(WITH_CAUSE) >= 20
    assert len(missed) <= len(WITH_CAUSE) / 10, missed


def test_a_kernel_names_a_mistake_that_the_op_has():
    for solution in WRONG:
        assert promised(solution, "Cause") in (None, *ops.load_mistakes(solution.op)), solution.name


def test_check_names_the_mistakes_of_nine_in_ten(named):
    failing = {name: line for name, line in named.items() if line.names != diagnoses.PASSES}
    missed = [name for name, line in failing.items() if line.names == diagnoses.NOTHING]
    assert len(failing) >= 80
    assert len(missed) <= len(failing) / 10, missed


@pytest.mark.parametrize("solution", BYSTANDERS, ids=lambda solution: solution.name)
def test_bystander_is_untouched(solution, counts):
    """Among them are one that kills its process, one that never ends and one that is no Python."""
    assert not corpus.harmed(solution, counts)


def test_corpus_has_every_failure():
    assert {verdict for solution in WRONG for verdict in expected(solution).values()} >= {
        "COMPILE_ERROR", "RUNTIME_ERROR", "CRASHED", "TIMEOUT", "OUT_OF_BOUNDS", "MUTATED_INPUT",
        "UNWRITTEN_OUTPUT", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "INCORRECT_NUMERICAL",
        "NONDETERMINISTIC",
    }  # fmt: skip


def test_the_docs_show_it(counts, pytestconfig):
    """`nox -s harness -- --write-docs` writes both."""
    table = corpus.table(WRONG, counts)
    assert corpus.in_the_docs("wrong", table, pytestconfig.getoption("write_docs"))


def test_the_docs_show_what_check_says(named, pytestconfig):
    """Values and lines differ from draw to draw, so only the kernels are compared."""
    if pytestconfig.getoption("write_docs"):
        corpus.in_the_docs("told", diagnoses.table(WRONG, named), True, "mistakes")
    text = (ROOT / "docs" / "mistakes.md").read_text()
    assert not diagnoses.missing(WRONG, text)
