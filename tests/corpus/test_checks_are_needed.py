"""Each check of the grader is needed: without it a kernel of a corpus is not caught any more."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from common import ops, solutions
from common.grading import call_plan, compare, execution, grade, problem, worker
from common.grading.problem import Change
from common.grading.sweep import Sweep
from common.grading.tolerance import budget_of
from common.measure import timing
from common.paths import ROOT
from common.solutions import Solution
from tests.support.corpora import DEADLINE, baseline_of, expected, promised, small
from tests.support.mutants import MUTATIONS, nothing

pytestmark = pytest.mark.slow

CHOOSE, HOLDS = call_plan.choose, grade.PlanRun._holds


def in_no_mode(run, condition):
    return condition is not call_plan.RoundCondition.FORWARD_RIGHT and HOLDS(run, condition)


def one_by_one(attempts, order):
    return tuple(
        step for attempt in attempts for step in call_plan._sequential_steps(attempt, bool(order))
    )


def without_other_inputs(problem, solution):
    return dataclasses.replace(CHOOSE(problem, solution), change=None)


def in_shared_memory(several, name, attempt):
    return several.memory.arena.tensor(several.slots[attempt].results[name])


CORPUS = {
    solution.handle: solution
    for name in ("wrong", "cheats")
    for solution in solutions.discover(ROOT / "tests" / "corpus" / name)
}
FOUND_INSIDE = {
    "no_poison": "unwritten_tail",
    "one_poison": "unwritten_tail",
    "no_reentry": "operator_forgets_its_last",
    "no_seal": "patches_time",
    "no_threads": "fills_later",
    "no_modes": "leaves_a_mode",
    "no_watch": "swallows_out_of_bounds",
    "no_provenance": "table_past_the_end",
    "no_tally": "forgets_out_of_bounds",
    "no_other_order": "depends_on_program_order",
    "no_alias_check": "returns_its_input",
}
"""A check in the solution's own process, and the kernel that it alone finds."""
FOUND_OUTSIDE = {
    "guard bands are not looked at": (
        execution.GuardedMemory,
        "overrun",
        nothing,
        "writes_behind_its_input",
    ),
    "guard bands hold the same in both runs": (
        execution,
        "GUARDS",
        (0x45, 0x45),
        "reads_behind_its_input",
    ),
    "elements stand without guards between them": (
        execution,
        "gaps_of",
        nothing,
        "reads_between_elements",
    ),
    "arguments are not looked at": (
        execution.GuardedMemory,
        "changed",
        nothing,
        "gradient_mutated",
    ),
    "values are not compared": (
        compare,
        "check_values",
        lambda *_: (None, 1.0),
        "rotate_half_wrong_sign",
    ),
    "runs are not compared": (
        compare,
        "integers",
        lambda tensor: tensor.new_zeros(1),
        "nondeterministic_rounding",
    ),
    "the inputs never change": (
        call_plan,
        "choose",
        without_other_inputs,
        "replays_by_shape",
    ),
    "other inputs are staged, yet not compared with the truth": (
        compare,
        "wrong_values",
        lambda *_: [],
        "wrong_on_other_inputs",
    ),
    "results stay in the shared memory": (
        execution.Execution,
        "_present",
        in_shared_memory,
        "mends_a_delivered_result",
    ),
    "results are not looked at again": (
        grade.PlanRun,
        "_look_again",
        nothing,
        "one_gradient_buffer",
    ),
    "two calls never live at once": (
        call_plan,
        "_concurrent_steps",
        one_by_one,
        "one_workspace_for_all_layers",
    ),
    "no calls live beside the latest": (
        call_plan,
        "SMALL",
        0,
        "gradients_in_two_buffers",
    ),
    "modes are not compared": (
        grade.PlanRun,
        "_compare_alone",
        nothing,
        "wrong_without_grad",
    ),
    "nothing is frozen": (
        grade.PlanRun,
        "_holds",
        in_no_mode,
        "frozen_weights_freeze_all",
    ),
    "rows are judged together": (
        problem,
        "budget_of",
        lambda eager, truth, *_: budget_of(eager, truth),
        "small_values_flushed",
    ),
}
"""A check of the harness's: where it is, what stands in its place, and the kernel."""
NEEDED_CHANGES = {
    Change.WRITTEN: "written_over",
    Change.REPLACED: "freed_and_allocated_again",
    Change.FLOAT32: "cosines_in_the_first_dtype",
}
"""A change of inputs, and the kernel that it alone finds."""
EVERY_MODE = 5
NEEDED = ("7x130-float32", "37x6-bfloat16-sparse-upstream=strided")
FOUND_IN_TIME = {
    "no_renewal": "replays_by_object",
    "no_shared_memory_check": "ring_of_buffers",
    "timed inputs are not looked at": "clears_bits_when_timed",
    "the harness has no clock of its own": "changes_the_end_alone",
    "no_modes": "works_before_its_time",
    "results are not compared": "does_less_when_timed",
}
"""Checks of timed calls."""


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
        *(other for other in others if getattr(other, "apart", False) or other.name in NEEDED),
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
        patch.setattr(call_plan, "MODE_EVERY", 1)
        yield


@pytest.fixture(scope="module")
def mutants():
    """Whose workers lack the check that a solution's folder is named after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.ForkServer, "MODULE", "tests.support.mutants")
        with Sweep("cpu", deadline=DEADLINE) as sweep:
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
def sweep():
    """One slot for each solution, so that its worker's choices come in turn."""
    with Sweep("cpu", deadline=DEADLINE, overlap=False) as sweep:
        yield sweep


@pytest.mark.parametrize("mutation", FOUND_OUTSIDE)
def test_a_check_outside_is_needed(mutation, sweep, tmp_path, monkeypatch):
    *check, kernel = FOUND_OUTSIDE[mutation]
    honest, mutant = copy(kernel, tmp_path / "with"), copy(kernel, tmp_path / "without")
    assert not missed(honest, verdicts(sweep, [honest])[honest])
    monkeypatch.setattr(*check)
    assert missed(mutant, verdicts(sweep, [mutant])[mutant])


@pytest.mark.parametrize("change", NEEDED_CHANGES)
def test_a_change_of_inputs_is_needed(change, sweep, tmp_path, monkeypatch):
    others = [each for each in (Change.WRITTEN, Change.REPLACED, change) if each is not change]
    for changes, folder in (([change], "with"), (others, "without")):
        monkeypatch.setattr(call_plan, "CHANGES", tuple(changes))
        kernel = copy(NEEDED_CHANGES[change], tmp_path / folder)
        found = verdicts(sweep, [kernel])[kernel]["forward"]
        assert ("INCORRECT_NUMERICAL" in found) == (folder == "with"), found


@pytest.mark.parametrize("mutation", FOUND_IN_TIME)
def test_a_check_of_timed_calls_is_needed(mutation, mutants, tmp_path, monkeypatch):
    """Its verdict with the check stands in test_cheats.py."""
    kernel = FOUND_IN_TIME[mutation]
    short = {"gpu": 0.02, "host": 0.02}
    monkeypatch.setattr(timing, "SECONDS", {"gpu": short, "host": short})
    if mutation == "the harness has no clock of its own":
        monkeypatch.setattr(timing.Stopwatch, "forged", nothing)
    elif mutation == "timed inputs are not looked at":
        monkeypatch.setattr(timing.TimedProcess, "changed", nothing)
    elif mutation not in MUTATIONS:
        monkeypatch.setattr(timing, "_wrong", nothing)
    solution = copy(kernel, tmp_path / mutation)
    op = ops.load(solution.op)
    (graded,) = mutants.grade(op, small(op), [solution])
    times = timing.time_case(graded, baseline_of(mutants, op), "forward", mutants.supervisor)
    assert promised(CORPUS[kernel], "Timed") != "PASSED"
    assert "verdict" not in times


def test_every_mutation_is_used():
    assert set(MUTATIONS) <= {*FOUND_INSIDE, *FOUND_IN_TIME}
