"""Each check of the grader is needed: without it a kernel of a corpus is not caught any more."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from common import ops
from common.grading import call_plan, worker
from common.grading.call_plan import Action, RoundCondition
from common.grading.sweep import Sweep
from common.grading.tolerance import budget_of
from common.grading.variations import Change
from common.measure import timing
from common.solutions import Solution
from tests.support import corpora as corpus
from tests.support.corpora import CHEATS, WRONG, expected, promised
from tests.support.mutants import MUTATIONS, nothing

pytestmark = pytest.mark.slow

CHOOSE, PLAN_OF = call_plan.choose, call_plan.plan_of
CORPUS = {solution.handle: solution for solution in (*WRONG, *CHEATS)}


def with_choices(**choices):
    """Return a function in the place of `choose` whose choices differ in these."""
    return lambda *of: dataclasses.replace(CHOOSE(*of), **choices)


def with_rounds(change):
    """Return a function in the place of `plan_of` whose rounds are changed, or left out by None."""

    def plan_of(*of):
        plan = PLAN_OF(*of)
        return dataclasses.replace(plan, rounds=tuple(filter(None, map(change, plan.rounds))))

    return plan_of


def without_steps(*actions, further=None):
    """Return a function in the place of `plan_of` that leaves out steps of these actions.

    Only those of further calls, if `further` is true.
    """

    def left(step):
        return step.action not in actions or (further and not step.attempt.further)

    return with_rounds(lambda each: dataclasses.replace(each, steps=(*filter(left, each.steps),)))


def one_call_at_a_time(each):
    """Return a round whose calls end one after the other."""
    steps = [step for step in each.steps if step.action in (Action.FORWARD, Action.BACKWARD)]
    alone = not any(step.action is Action.OUTPUT for step in each.steps)
    steps = sorted(steps, key=lambda step: step.attempt.name)
    return each if alone else dataclasses.replace(each, steps=tuple(steps))


FOUND_INSIDE = {
    "no_poison": "unwritten_tail", "one_poison": "unwritten_tail",
    "no_reentry": "operator_forgets_its_last", "no_seal": "patches_time",
    "no_threads": "fills_later", "no_modes": "leaves_a_mode",
    "no_watch": "swallows_out_of_bounds", "no_provenance": "table_past_the_end",
    "no_other_order": "depends_on_program_order", "no_alias_check": "returns_its_input",
}  # fmt: skip
"""A check in the solution's own process, and the kernel that it alone finds."""
GRADING, PLAN = "common.grading", "common.grading.call_plan.plan_of"
FOUND_OUTSIDE = {
    "writes_behind_its_input": (f"{GRADING}.guarded_memory.GuardedMemory.overrun", nothing),
    "reads_behind_its_input": (f"{GRADING}.execution.GUARDS", (0x45, 0x45)),
    "reads_between_elements": (f"{GRADING}.guarded_memory.gaps_of", nothing),
    "gradient_mutated": (f"{GRADING}.guarded_memory.GuardedMemory.changed", nothing),
    "rotate_half_wrong_sign": (f"{GRADING}.compare.check_values", lambda *_: (None, 1.0)),
    "nondeterministic_rounding": (f"{GRADING}.compare.integers", lambda each: each.new_zeros(1)),
    "replays_by_shape": (f"{GRADING}.call_plan.choose", with_choices(changes=())),
    "wrong_on_other_inputs": (f"{GRADING}.grade.compare_other", lambda *_: []),
    # results stay in the shared memory
    "mends_a_delivered_result": (f"{GRADING}.problem.Problem.kept", lambda _, result: result),
    "one_gradient_buffer": (PLAN, without_steps(Action.OUTPUT, Action.GRADIENTS)),
    "one_workspace_for_all_layers": (PLAN, with_rounds(one_call_at_a_time)),
    "gradients_in_two_buffers": (f"{GRADING}.call_plan.choose", with_choices(concurrent=0)),
    "wrong_without_grad": (PLAN, without_steps(Action.COMPARE, further=True)),
    "frozen_weights_freeze_all": (
        PLAN,
        with_rounds(lambda each: None if each.condition is RoundCondition.FORWARD_RIGHT else each),
    ),
    # rows are judged together
    "small_values_flushed": (
        f"{GRADING}.problem.budget_of",
        lambda eager, truth, *_: budget_of(eager, truth),
    ),
}
"""A kernel, and the check of the harness's that it needs: where it is, and what stands there."""
NEEDED_CHANGES = {
    Change.WRITTEN: "written_over",
    Change.REPLACED: "freed_and_allocated_again",
    Change.FLOAT32: "cosines_in_the_first_dtype",
}
"""A change of inputs, and the kernel that it alone finds."""
EVERY_MODE = 5
NEEDED = ("7x130-float32", "37x6-bfloat16-sparse-upstream=strided")
FOUND_IN_TIME = {
    "replays_by_object": "no_renewal",
    "ring_of_buffers": "no_shared_memory_check",
    "works_before_its_time": "no_modes",
    "clears_bits_when_timed": ("common.measure.timed_process.StagedCalls.check", nothing),
    "changes_the_end_alone": ("common.measure.timing.Stopwatch.forged", nothing),
    "does_less_when_timed": ("common.measure.timed_process.check_values", lambda *_: (None, 1.0)),
}
"""A kernel, and the check of timed calls that it needs, in its process or the harness's."""


def copy(kernel: str, folder: Path) -> Solution:
    solution = CORPUS[kernel]
    folder.mkdir()
    shutil.copy(solution.path, folder)
    return Solution(folder / solution.path.name, solution.op)


def cases(op: str):
    """A few, and those that one of the kernels is about."""
    several = list(ops.load(op).cases("smoke"))
    others = several[EVERY_MODE:]
    return [
        *several[:EVERY_MODE],
        *(other for other in others if other.values == "apart" or other.name in NEEDED),
    ]


def verdicts(sweep: Sweep, kernels: list[Solution]) -> dict[Solution, dict[str, set[str]]]:
    found = defaultdict(lambda: defaultdict(set))
    for op in sorted({solution.op for solution in kernels}):
        for graded in sweep.grade(ops.load(op), cases(op), kernels):
            for direction, verdict in graded.verdicts.items():
                found[graded.solution][direction].add(verdict.verdict)
    return found


def missed(solution: Solution, found: dict[str, set[str]]) -> bool:
    """Is there a direction whose promised verdict did not come?"""
    return any(verdict not in found[each] for each, verdict in expected(solution).items())


@pytest.fixture(scope="module", autouse=True)
def every_case_is_asked_further():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_plan, "CHANGES", (Change.WRITTEN,))
        patch.setattr(call_plan, "WRITTEN_EVERY", 1)
        patch.setattr(call_plan, "MODE_EVERY", 1)
        yield


@pytest.fixture(scope="module")
def mutants():
    """Whose workers lack the check that a solution's folder is named after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.ForkServer, "MODULE", "tests.support.mutants")
        with Sweep("cpu", deadline=corpus.DEADLINE) as sweep:
            yield sweep


@pytest.fixture(scope="module")
def inside(tmp_path_factory, mutants):
    """Each kernel with its check and without, all in one run."""
    root = tmp_path_factory.mktemp("mutants")
    pairs = {
        mutation: (copy(kernel, root / f"with_{mutation}"), copy(kernel, root / mutation))
        for mutation, kernel in FOUND_INSIDE.items()
    }
    found = verdicts(mutants, list(itertools.chain(*pairs.values())))
    return {name: [missed(each, found[each]) for each in pair] for name, pair in pairs.items()}


@pytest.mark.parametrize("mutation", FOUND_INSIDE)
def test_a_check_inside_is_needed(mutation, inside):
    assert inside[mutation] == [False, True]


@pytest.fixture(scope="module")
def sweep(fork_server):
    """One slot for each solution, so that its worker's choices come in turn."""
    how = {"deadline": corpus.DEADLINE, "overlap": False, "server": fork_server}
    with Sweep("cpu", **how) as sweep:
        yield sweep


@pytest.mark.parametrize("kernel", FOUND_OUTSIDE)
def test_a_check_outside_is_needed(kernel, sweep, tmp_path, monkeypatch):
    honest, mutant = copy(kernel, tmp_path / "with"), copy(kernel, tmp_path / "without")
    assert not missed(honest, verdicts(sweep, [honest])[honest])
    monkeypatch.setattr(*FOUND_OUTSIDE[kernel])
    assert missed(mutant, verdicts(sweep, [mutant])[mutant])


@pytest.mark.parametrize("change", NEEDED_CHANGES)
def test_a_change_of_inputs_is_needed(change, sweep, tmp_path, monkeypatch):
    others = [each for each in (Change.WRITTEN, Change.REPLACED, change) if each is not change]
    for changes, folder in (([change], "with"), (others, "without")):
        monkeypatch.setattr(call_plan, "CHANGES", tuple(changes))
        kernel = copy(NEEDED_CHANGES[change], tmp_path / folder)
        found = verdicts(sweep, [kernel])[kernel]["forward"]
        assert ("INCORRECT_NUMERICAL" in found) == (folder == "with"), found


@pytest.mark.parametrize("kernel", FOUND_IN_TIME)
def test_a_check_of_timed_calls_is_needed(kernel, mutants, tmp_path, monkeypatch):
    """Its verdict with the check stands in test_cheats.py."""
    check = FOUND_IN_TIME[kernel]
    if not isinstance(check, str):
        monkeypatch.setattr(*check)
    solution = copy(kernel, tmp_path / (check if isinstance(check, str) else "any"))
    op = ops.load(solution.op)
    (graded,) = mutants.grade(op, corpus.small(op), [solution])
    beside = corpus.baseline_of(mutants, op)
    times = timing.time_case(graded, beside, "forward", mutants.supervisor, corpus.SHORT)
    assert promised(CORPUS[kernel], "Timed") != "PASSED"
    assert "verdict" not in times


def test_every_mutation_is_used():
    assert set(MUTATIONS) <= {*FOUND_INSIDE, *map(str, FOUND_IN_TIME.values())}
