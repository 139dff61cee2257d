"""Find the cause of a solution's failures: a known mistake of the op, or one property of a case.

A mistake is a reference implementation that is wrong in one way. A mistake explains a direction of
a solution if every wrong result matches the mistake's result by the numeric rule, and if the
mistake changes nothing in first calls that are right. Cases in which the mistake would leave a
tensor decide nothing, like those whose verdict is OUT_OF_BOUNDS. A mistake is reported only if it
explains at least FEWEST cases, and every other one fails to explain as many. If no mistake gives
all gradients of a solution, those are compared that are wrong in some case. Of two mistakes with
the same results in a direction, the one is reported that explains the other too, otherwise both.

A failing case that no mistake explains is graded again with each of its properties at its default,
one property at a time. That helps where too few cases fail to find a failing condition: one failing
float16 case is no evidence against float16, but it is if the same case passes in float32.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch

from common import ops
from common.grading import oracle
from common.grading.grade import MOST_ELEMENTS
from common.grading.problem import Drawn, Problem, drawn
from common.grading.sweep import Graded, Sweep
from common.grading.tolerance import Budget, budget_of, check_values, larger
from common.ops._draw import facts_of
from common.spec import DIRECTIONS, Case, Direction, Op, Reference, is_output
from common.verdicts import Verdict

FEWEST = 2
"""The fewest cases that a cause must explain, and that every other mistake must fail to explain."""
MOST_MISTAKES = 2
"""The most mistakes that are reported together if the cases do not decide between them."""
TRIES = 3
"""The times that each case of a contrast is graded, since its plan of calls is drawn at random: the
failing case must fail every time, and the changed case must pass every time."""
Results = oracle.Results
T = TypeVar("T")


class Diagnosis(NamedTuple):
    """The mistake that causes a solution's wrong results, or several that may."""

    solution: str
    directions: tuple[Direction, ...]
    mistakes: tuple[str, ...]


def causes(graded_cases: Iterable[Graded]) -> Iterator[Diagnosis]:
    """Yield the cause of each solution's wrong results, where it is one of the op's mistakes.

    The cases, of any solutions and ops, were graded with `keep`.
    """
    by_solution: dict[str, list[Graded]] = defaultdict(list)
    for graded in graded_cases:
        by_solution[graded.solution.name].append(graded)
    for solution, own_cases in by_solution.items():
        by_mistakes: dict[tuple[str, ...], list[Direction]] = defaultdict(list)
        for direction in DIRECTIONS:
            if mistakes := _cause(own_cases, direction):
                by_mistakes[mistakes].append(direction)
        for mistakes, directions in by_mistakes.items():
            yield Diagnosis(solution, tuple(directions), mistakes)


def explanations(
    mistakes: Iterable[str],
    wrong: Sequence[T],
    right: Iterable[T],
    explains: Callable[[str, T], bool | None],
) -> list[str]:
    """Return the mistakes that explain every case, if every other mistake fails in FEWEST cases.

    A mistake must explain FEWEST wrong cases, and is no candidate if it explains none. The wrong
    cases that are quickest to check come first. `explains` returns whether a mistake explains a
    case's results, None if that is unknown; it is called as rarely as possible.
    """
    failed, shown = Counter(dict.fromkeys(mistakes, 0)), Counter[str]()
    if len(wrong) < FEWEST:
        return []
    for index, case in enumerate((*wrong, *right)):
        if 0 not in failed.values():
            return []
        for mistake, failures in failed.items():
            if failures < FEWEST and (explained := explains(mistake, case)) is not None:
                failed[mistake] += not explained
                shown[mistake] += explained and index < len(wrong)
    remaining = [mistake for mistake in failed if failed[mistake] < FEWEST and shown[mistake]]
    clear = all(not failed[mistake] and shown[mistake] >= FEWEST for mistake in remaining)
    return remaining if clear else []


# --- mistakes -------------------------------------------------------------------------------------


def _cause(graded_cases: Sequence[Graded], direction: Direction) -> tuple[str, ...]:
    """Return the mistakes that may cause one solution's wrong results; none if unknown."""
    mistakes = ops.load_mistakes(graded_cases[0].problem.op.name)

    def explains(mistake: str, case: _Judged, names: Collection[str] = ()) -> bool | None:
        return case.explained_by(mistakes[mistake], names)

    wrong, right = _judged(graded_cases, direction)
    likely = explanations(mistakes, wrong, right, explains)
    if not likely and len(wrong) >= FEWEST and len(wrong[0].names) > 1:
        names = {name for case in wrong for name in case.wrong}
        likely = explanations(mistakes, wrong, right, functools.partial(explains, names=names))
    if len(likely) > 1:
        (other,) = {*DIRECTIONS} - {direction}
        others = [case for cases in _judged(graded_cases, other) for case in cases]
        both = [each for each in likely if all(explains(each, one) is not False for one in others)]
        likely = both or likely
    return tuple(likely) if len(likely) <= MOST_MISTAKES else ()


def _judged(
    graded_cases: Iterable[Graded], direction: Direction
) -> tuple[list[_Judged], list[_Judged]]:
    """Return the wrong cases and the right cases of a direction, the smallest first."""
    cases = [_Judged(graded.problem, graded.verdicts[direction]) for graded in graded_cases
             if direction in graded.verdicts and not graded.case.far_bytes]  # fmt: skip
    cases = sorted(cases, key=lambda case: case.size)
    wrong, right = (
        [case for case in cases
         if case.verdict.verdict == verdict and 0 < case.size <= MOST_ELEMENTS]
        for verdict in ("INCORRECT_NUMERICAL", "PASSED")
    )  # fmt: skip
    return wrong, right


@dataclass(frozen=True)
class _Judged:
    """One direction of a graded case, with inputs drawn again from the same seed."""

    problem: Problem
    verdict: Verdict

    @property
    def names(self) -> list[str]:
        """The names of the direction's results."""
        backward = self.verdict.direction == "backward"
        return [name for name in self.problem.names if is_output(name) != backward]

    @property
    def size(self) -> int:
        """The number of elements in the direction's results."""
        return sum(self.problem.shapes[name].numel() for name in self.names)

    def explained_by(self, mistake: Reference, names: Collection[str] = ()) -> bool | None:
        """Return whether the results match the mistake's results, and not the reference's.

        For a case that passes, return whether the mistake's own results, rounded to the dtype,
        would pass, and None for True if a later call fails, whose inputs differ. With `names`,
        compare these results alone. Return None if the mistake would leave a tensor, and the case
        fails or has no output element.
        """
        passes = self.verdict.verdict == "PASSED"
        right = passes or not self.wrong
        try:
            expected = self._results(mistake)
        except NotImplementedError:
            # without an element of the output there is no access
            return False if right and self.problem.op.elements(self.problem.case) else None
        results = expected if right else self.verdict.results
        compared = {name: results[name] for name in self.names if not names or name in names}
        if right:
            dtype = getattr(torch, self.problem.case.dtype)
            rounded = {name: result.to(dtype) for name, result in compared.items()}
            if self._outside(rounded, self._truth, self.problem.budgets):
                return False
            return passes or (None if self.verdict.results else False)
        return not self._differing(compared, mistake, expected)

    @cached_property
    def wrong(self) -> list[str]:
        """The wrong results of the first call; none if only a later call fails."""
        return self._differing(self.verdict.results, self.problem.op.reference, self._truth)

    @cached_property
    def _truth(self) -> Results:
        return self._results(self.problem.op.reference)

    @cached_property
    def _inputs(self) -> Drawn:
        """The arguments and the upstream gradients."""
        problem = self.problem
        return drawn(problem.op, problem.case, problem.draws, problem.device)

    def _results(self, reference: Reference, dense: bool = False) -> Results:
        """Return the results of a reference: the oracle, or `dense`, eager on dense arguments.

        Eager's are copies, as in the oracle: a mistake may index a view beyond its memory.
        """
        op = dataclasses.replace(self.problem.op, reference=reference)
        arguments, upstream = self._inputs
        backward = self.verdict.direction == "backward"
        if not dense:
            return oracle.truth(op, arguments, upstream, backward)
        copies = {name: value.clone() if isinstance(value, torch.Tensor) else value
                  for name, value in arguments.items()}  # fmt: skip
        return oracle.eager(op, copies, upstream, backward)

    def _differing(
        self, results: Mapping[str, torch.Tensor], reference: Reference, expected: Results
    ) -> list[str]:
        """Return the results that differ from a reference's results, by the numeric rule.

        The budget is the larger of eager's error under a mistake and its error without: under a
        mistake, values may be larger, or nonzero where the op's values are zero.
        """
        budgets = dict(self.problem.budgets)
        if not (outside := self._outside(results, expected, budgets)):
            return []
        eager = self._results(reference, dense=True)
        for name in self.names:
            own = budget_of(eager[name], expected[name], self.problem.case.by_slice)
            if own.largest.isfinite().all():
                budgets[name] = larger(own, budgets[name])
        return self._outside({name: results[name] for name in outside}, expected, budgets)

    def _outside(
        self, results: Mapping[str, torch.Tensor], expected: Results, budgets: Mapping[str, Budget]
    ) -> list[str]:
        """Return the results outside of the numeric rule; expected infinity and NaN are right."""
        outside = []
        for name, result in results.items():
            result, truth = result.to(expected[name].device), expected[name]
            same = (result == truth) | (result.isnan() & truth.isnan())
            if same.all():  # also an empty result, which has no largest error
                continue
            result, truth = result.masked_fill(same, 0), truth.masked_fill(same, 0)
            if check_values(result, truth, budgets[name], self.problem.slack)[0] is not None:
                outside.append(name)
        return outside


# --- contrasts ------------------------------------------------------------------------------------


def contrast(sweep: Sweep, failing: Graded) -> str:
    """Return the single changes with which a failing case passes, in words; "" for none.

    A case with far views spans gigabytes of addresses, and is not run again: the reason of its
    failure names the view already.
    """
    op, case = failing.problem.op, failing.case
    directions = [name for name, verdict in failing.verdicts.items() if not verdict.fine]
    others = {} if case.far_bytes else plainer(op, case)
    for _ in range(TRIES):
        if not others:
            break
        # a separate `grade` per try: within one, equal cases get the same plan of calls
        passes = {
            graded.case: {graded.verdicts[each].verdict for each in directions} == {"PASSED"}
            for graded in sweep.grade(op, [case, *others], [failing.solution])
            if isinstance(graded, Graded) and graded.verdicts.keys() >= {*directions}
        }
        fails = passes.get(case) is False
        others = {other: text for other, text in others.items() if fails and passes.get(other)}
    return f"{case.name} passes with {', or with '.join(others.values())}" if others else ""


def plainer(op: Op[Any], case: Case) -> dict[Case, str]:
    """Return nonempty copies of the case with one property at its default, and the change in words.

    Sizes stay, but a list of sequences may be cut to its first half. A change that `facts_of` does
    not describe, such as the ranking clock, gives no case.
    """
    defaults = {each.name: each.default for each in dataclasses.fields(case)
                if each.default is not dataclasses.MISSING}  # fmt: skip
    single = [(name,) for name in defaults if name not in (*case.lists, *case.together)]
    changes = [{name: defaults[name] for name in names} for names in (*single, case.together)]
    lists = {name: getattr(case, name) for name in case.lists}
    changes += [{name: each[: len(each) // 2]} for name, each in lists.items() if len(each) > 1]
    before, cases = facts_of(op, case), dict[Case, str]()
    for change in changes:
        other = dataclasses.replace(case, **change)
        facts = facts_of(op, other)
        words = [f"{name} {facts[name]} in place of {before[name]}"
                 for name in facts if facts[name] != before[name]]  # fmt: skip
        if words and op.elements(other):
            cases[other] = " and ".join(words)
    return cases
