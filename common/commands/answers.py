"""The answers of one tier as data: verdicts, coverage, and groups of failures.

A group of failures has the property that separates its cases from the passing ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

from msgspec import structs

from common.commands.failing_condition import failing_condition
from common.commands.result import FailingCases, Summary
from common.errors import DRAWN, NOTES, Kind
from common.grading.diagnosis import Diagnosis
from common.ops._draw import facts_of
from common.printable import plural, printable
from common.spec import DIRECTIONS, Case, Direction, Fact, Op, Tier
from common.verdicts import BEFORE_LAUNCH, ENDED, FINE, VERDICTS, Autotuned, Verdict, text_of

OF_A_LINE = {"COMPILE_ERROR", "RUNTIME_ERROR", "TIMEOUT"}
"""The verdicts on a line of source, which is at fault in whatever direction it runs."""
LAUNCHES = "an autotuned kernel"
"""The property that says whether an autotuner launched a kernel before the launch that counts."""
LAUNCHED = "tried before the call, as on a GPU (see reset_to_zero and restore_value)"
Names = tuple[str, str]
"""The names of a solution and of a case."""
Failures = dict[Names, tuple[str, ...] | None]
"""The names of failing answers, with `Verdict.after`."""


@dataclass(frozen=True)
class CaseAnswer:
    """The verdicts of one solution on one case."""

    op: Op[Any]
    case: Case
    verdicts: Mapping[Direction, Verdict]

    @property
    def failures(self) -> list[tuple[tuple[Direction, ...], Verdict]]:
        """Each distinct failure, with its directions."""
        failures: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
        for verdict in self.verdicts.values():
            if not verdict.fine:
                failures[verdict.verdict, verdict.reason].append(verdict)
        return [(tuple(each.direction for each in same), same[0]) for same in failures.values()]

    @property
    def notes(self) -> set[tuple[str, bool]]:
        """The kinds of notes in any direction, and whether they are found."""
        verdicts = self.verdicts.values()
        return {(note.kind, note.found) for each in verdicts for note in each.notes}

    @property
    def unsupported(self) -> list[str]:
        """The distinct reasons of the directions that are not supported."""
        verdicts = self.verdicts.values()
        return list(dict.fromkeys(v.reason for v in verdicts if v.verdict == "UNSUPPORTED"))

    @property
    def passes(self) -> bool:
        """Whether a direction is right and none fails."""
        verdicts = [verdict.verdict for verdict in self.verdicts.values()]
        return "PASSED" in verdicts and FINE.issuperset(verdicts)

    def verdict(self, direction: Direction) -> str:
        """Return the verdict of a direction; a direction that the case lacks is UNSUPPORTED."""
        return self.verdicts[direction].verdict if direction in self.verdicts else "UNSUPPORTED"

    @property
    def empty(self) -> bool:
        """Whether the outputs have no element, so that no mistake is visible."""
        return self.op.elements(self.case) == 0


@dataclass
class Answers:
    """The answers of one tier by the names of the solution and of the case, in their order."""

    by_name: dict[Names, CaseAnswer] = field(default_factory=dict, init=False)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts of all answers."""
        return [each for answer in self.by_name.values() for each in answer.verdicts.values()]

    @property
    def failed(self) -> bool:
        """Whether any solution failed, or answered no case."""
        return bool(self.failures or coverage(self.verdicts)[0])

    @property
    def failures(self) -> Failures:
        """The failing answers; a drawn configuration counts as an earlier call of the case."""

        def most(failures: Iterable[Verdict]) -> tuple[str, ...] | None:
            afters = (each.after or () if each.configurations else each.after for each in failures)
            return max(afters, key=lambda names: -1 if names is None else len(names))

        return {key: most(failure for _, failure in answer.failures)
                for key, answer in self.by_name.items() if answer.failures}  # fmt: skip

    def update(self, failed: Failures) -> Failures:
        """Return earlier failures, with these answers in place of their cases'."""
        left = {key: after for key, after in failed.items() if key not in self.by_name}
        return left | self.failures

    @property
    def passes(self) -> bool:
        """Whether a direction of any case is right."""
        return any(verdict.verdict == "PASSED" for verdict in self.verdicts)

    def of(self, solution: str) -> list[CaseAnswer]:
        """Return the answers of one solution."""
        return [answer for (name, _), answer in self.by_name.items() if name == solution]

    def groups(self) -> list[Group]:
        """Return the failures by solution, verdict and directions, or by the line at fault."""
        found = defaultdict[tuple[Any, ...], dict[str, tuple[Direction, ...]]](dict)
        for (solution, case), answer in self.by_name.items():
            for directions, failure in answer.failures:
                kind = failure.places[:1] if failure.verdict in OF_A_LINE else directions
                cases = found[solution, failure.verdict, kind]
                cases[case] = cases.get(case, ()) + directions
        groups = []
        for (solution, verdict, _), cases in found.items():
            directions = tuple(each for each in DIRECTIONS if each in set().union(*cases.values()))
            failing = [self.by_name[solution, case] for case in cases]
            answered = [answer for answer in self.of(solution)
                        if answer.verdict(directions[0]) != "UNSUPPORTED"]  # fmt: skip
            groups.append(Group(solution, directions, verdict, failing, answered))
        return groups

    def summaries(
        self,
        tier: Tier,
        device: str,
        causes: Collection[Diagnosis] = (),
        contrast: Callable[[Names], str] = lambda names: "",
    ) -> list[Summary]:
        """Return each solution's outcome in the tier on the device.

        The causes are those of wrong values. `contrast` returns the changes with which a failing
        case passes, "" if there are none; it is called for a group of failures without another
        explanation.
        """
        remarks, failures = coverage(self.verdicts)[1], defaultdict[str, list[FailingCases]](list)
        seen = defaultdict[str, set[str]](set)
        for group in sorted(self.groups(), key=lambda group: [*VERDICTS].index(group.verdict)):
            data, cases = group.data(causes, contrast), {each.case.name for each in group.failing}
            again = len(cases & seen[group.solution])
            failures[group.solution].append(structs.replace(data, again=again))
            seen[group.solution] |= cases
        summaries = []
        for name in dict.fromkeys(name for name, _ in self.by_name):
            answers = self.of(name)
            passing = [each for each in answers if each.passes]
            every = sum(1 for _ in answers[0].op.tier(tier, device))
            reasons = Counter(printable(why) for each in answers for why in each.unsupported)
            notes = Counter(note for each in answers for note in each.notes)
            summary = Summary(
                solution=name,
                tier=tier,
                passed=len(passing),
                forward_alone=sum(bool(each.unsupported) for each in passing),
                failed=sum(bool(each.failures) for each in answers),
                unsupported=sum(not (each.passes or each.failures) for each in answers),
                left_out=max(every - len(answers), 0),
                reasons=dict(reasons.most_common()),
                notes={kind: notes[kind, True] for kind in NOTES if notes[kind, True]},
                tried={kind: n for kind in DRAWN if (n := notes[kind, True] + notes[kind, False])},
                configurations=_configurations(answers),
                remark=remarks.get(name, ""),
                failures=tuple(failures[name]),
            )
            summaries.append(summary)
        return summaries


def coverage(verdicts: Iterable[Verdict]) -> tuple[set[str], dict[str, str]]:
    """Return the solutions that answer no case, and a remark on each solution without an answer.

    A failure in either direction is an answer too. A solution that needs a GPU, where there is
    none, may answer no case.
    """
    by_solution: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_solution[verdict.solution].append(verdict)
    silent, remarks = set(), {}
    for solution, own in by_solution.items():
        cases = {verdict.case for verdict in own}
        answered = {verdict.case for verdict in own if verdict.verdict != "UNSUPPORTED"}
        without_gpu = {verdict.case for verdict in own if verdict.kind is Kind.NO_GPU}
        if not answered and without_gpu:
            needed = f"{len(without_gpu)} of {plural(len(cases))} need a GPU"
            remarks[solution] = f"is not judged: {needed}, and none is here"
        elif not answered:
            silent.add(solution)
            remarks[solution] = f"answers no case: it leaves all {len(cases)} unsupported"
    return silent, remarks


def _configurations(answers: Iterable[CaseAnswer]) -> dict[str, str]:
    """Return how many configurations each autotuned kernel ran in, such as `5 of 8`."""
    taken: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = {}
    for verdict in (each for answer in answers for each in answer.verdicts.values()):
        for kernel, tuned in verdict.configurations.items():
            taken[kernel].update(map(text_of, tuned.values))
            counts[kernel] = max(counts.get(kernel, 0), tuned.count, len(taken[kernel]))
    return {kernel: f"{len(taken[kernel])} of {count}" for kernel, count in counts.items()}


@dataclass(frozen=True)
class Group:
    """The failures of a solution with the same verdict in the same directions."""

    solution: str
    directions: tuple[Direction, ...]
    verdict: str
    failing: Sequence[CaseAnswer]
    answered: Sequence[CaseAnswer]
    """The solution's answers in the tier that are supported in the first direction."""

    def data(self, causes: Iterable[Diagnosis], contrast: Callable[[Names], str]) -> FailingCases:
        """Return the group as data, with the cause of its values, or what lets a case pass.

        No property of a case decides whether a process ends, or what earlier calls cause.
        """
        from common.commands.hint import hints_of  # it needs the grader, which needs the answers

        mistakes = [", or: ".join(each.mistakes) for each in causes
                    if each.solution == self.solution
                    if {*each.directions} & {*self.directions}]  # fmt: skip
        smallest = self.smallest
        first = next(smallest.verdicts[each] for each in self.directions
                     if smallest.verdict(each) == self.verdict)  # fmt: skip
        property = self.condition or self.everywhere
        alone = self.verdict in ENDED | BEFORE_LAUNCH or first.after is not None
        if not (property or alone or mistakes):
            property = contrast((self.solution, first.case))
        if self.verdict != "INCORRECT_NUMERICAL":
            mistakes = []
        return FailingCases(
            solution=self.solution,
            verdict=self.verdict,
            directions=self.directions,
            failed=len(self.failing),
            case=first.case,
            reason=first.reason,
            place=first.places[0] if first.places else None,
            property=property,
            cause="; ".join(mistakes),
            hint=next(iter(hints_of(self.failing[0].op.name, {self.verdict, *mistakes})), ""),
            earlier=first.after is not None,
        )

    @property
    def smallest(self) -> CaseAnswer:
        """The failing answer with the fewest bytes and FLOPs."""
        size = attrgetter("bytes", "flops")
        return min(self.failing, key=lambda each: size(each.op.work(each.case, "forward")))

    @property
    def everywhere(self) -> str:
        """Words for failures in every case, or in every case with an element; "" otherwise."""
        if len(self.failing) == len(self.answered):
            return "fails in every case"
        elements = [answer for answer in self.answered if not answer.empty]
        return "fails in every case that has an element" if elements == self.failing else ""

    @cached_property
    def condition(self) -> str:
        """See `failing_condition`: what separates failures from passes in the first direction.

        The upstream gradient's layout is none if forward fails. A parameter of an autotuned kernel
        is one, called BLOCK, or `_kernel's BLOCK` if several kernels are tuned.
        """
        passing = [each for each in self.answered
                   if FINE.issuperset(map(each.verdict, self.directions))]  # fmt: skip
        pairs = {(kernel, name): None for answer in (*self.failing, *passing)
                 for kernel, tuned in self._tuned(answer).items()
                 for values in tuned.values for name in values}  # fmt: skip
        several = len({kernel for kernel, _ in pairs}) > 1

        def facts(answer: CaseAnswer) -> dict[str, Fact]:
            found, kernels = facts_of(answer.op, answer.case), self._tuned(answer)
            if "forward" in self.directions:
                found.pop("upstream", None)
            for kernel, name in pairs:
                ran = kernels[kernel].values if kernel in kernels else [{}]
                values = list(dict.fromkeys(value.get(name, "not launched") for value in ran))
                fact = values[0] if len(values) == 1 else " and ".join(sorted(map(str, values)))
                found[f"{kernel}'s {name}" if several else name] = fact
            if pairs:
                launched = any(tuned.launches for tuned in kernels.values())
                found[LAUNCHES] = LAUNCHED if launched else "launched once"
            return found

        failed, passed = ([facts(answer) for answer in answers if not answer.empty]
                          for answers in (self.failing, passing))  # fmt: skip
        return failing_condition(failed, passed)

    def _tuned(self, answer: CaseAnswer) -> Mapping[str, Autotuned]:
        return answer.verdicts[self.directions[0]].configurations
