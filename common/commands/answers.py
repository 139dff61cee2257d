"""The answers of one tier: failures in groups, what a group's cases share, and the coverage."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from common.commands.failing_condition import CHANCE, failing_condition
from common.errors import Kind
from common.ops._draw import facts_of
from common.printable import printable
from common.records.lines import headings
from common.spec import Case, Direction, Fact, Op
from common.verdicts import BEFORE_LAUNCH, ENDED, Verdict

SHOWN = 2
"""The number of cases to show of each group of failures, the smallest cases first."""
REASONS = 3
"""The number of reasons to show for unsupported cases, the most common reasons first."""
Names = tuple[str, str]
"""The names of a solution and of a case."""


@dataclass(frozen=True)
class CaseVerdicts:
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
    def outcome(self) -> str:
        """The verdict, or the verdict of each direction if they differ."""
        names = {direction: verdict.verdict for direction, verdict in self.verdicts.items()}
        if len(set(names.values())) == 1:
            return next(iter(names.values()))
        return " and ".join(f"{direction} {name}" for direction, name in names.items())

    @property
    def notes(self) -> list[str]:
        """The distinct kinds of the notes in any direction."""
        return headings(note for verdict in self.verdicts.values() for note in verdict.notes)

    @property
    def unsupported(self) -> list[str]:
        """The distinct reasons of the directions that are not supported."""
        verdicts = self.verdicts.values()
        return list(dict.fromkeys(v.reason for v in verdicts if v.verdict == "UNSUPPORTED"))

    def verdict(self, direction: Direction) -> str:
        """Return the verdict of a direction; a direction that the case lacks is UNSUPPORTED."""
        return self.verdicts[direction].verdict if direction in self.verdicts else "UNSUPPORTED"

    @property
    def empty(self) -> bool:
        """Whether the output has no element, so that no mistake is visible."""
        return math.prod(self.op.output(self.case)) == 0


@dataclass(frozen=True)
class Group:
    """The failures of a solution with the same verdict in the same directions."""

    solution: str
    directions: tuple[Direction, ...]
    verdict: str
    failing: Sequence[CaseVerdicts]
    answered: Sequence[CaseVerdicts]
    """The solution's answers in the tier that are supported in the first direction."""

    @property
    def where(self) -> str:
        """The solution and the directions."""
        return f"{self.solution} {' and '.join(self.directions)}"

    @cached_property
    def by_size(self) -> list[CaseVerdicts]:
        """The failing answers, in the order of the cases' bytes and FLOPs."""

        def size(answer: CaseVerdicts) -> tuple[int, int]:
            work = answer.op.work(answer.case, "forward")
            return work.bytes, work.flops

        return sorted(self.failing, key=size)

    @cached_property
    def smallest(self) -> list[Verdict]:
        """The smallest cases' failures with distinct groups, or distinct lines of source."""
        distinct: dict[object, Verdict] = {}
        for answer in self.by_size:
            verdict = self._verdict(answer)
            line = verdict.places and verdict.places[0][:2]
            distinct.setdefault(line or verdict.group or verdict.reason, verdict)
        return list(distinct.values())[:SHOWN]

    @cached_property
    def condition(self) -> str:
        """The property that separates the failures from the passes; "" without such a property."""
        failing, passing = (
            [self._facts(answer) for answer in answers if not answer.empty]
            for answers in (self.failing, self._passing)
        )
        return failing_condition(failing, passing)

    @property
    def after_launches(self) -> str:
        """The kernels if failures come only after launches by an autotuner; "" otherwise.

        As for `condition`, chance would give the same in fewer than one run of a thousand.
        """
        compared = *self.failing, *self._passing
        tuned = [self._verdict(answer).configurations for answer in compared]
        launched = [any(each.launches for each in kernels.values()) for kernels in tuned]
        fails, count = len(self.failing), sum(launched)
        chance = math.comb(count, fails) / math.comb(len(tuned), fails)
        if not all(launched[:fails]) or chance > CHANCE:
            return ""
        return " and ".join(dict.fromkeys(name for kernels in tuned[:fails] for name in kernels))

    @property
    def everywhere(self) -> str:
        """The number of failures in words if all cases with an element fail; "" otherwise."""
        fails = len(self.failing)
        if fails == len(self.answered):
            return f"every case ({fails})"
        elements = [answer for answer in self.answered if not answer.empty]
        return f"every case that has an element ({fails})" if elements == self.failing else ""

    @property
    def _passing(self) -> list[CaseVerdicts]:
        return [each for each in self.answered if each.verdict(self.directions[0]) == "PASSED"]

    def _verdict(self, answer: CaseVerdicts) -> Verdict:
        return answer.verdicts[self.directions[0]]

    def _facts(self, answer: CaseVerdicts) -> dict[str, Fact]:
        """Return the case's properties, without the upstream gradient's layout if forward fails.

        The parameters of autotuned kernels are properties too, such as BLOCK, or `_kernel's BLOCK`
        if several kernels are tuned.
        """
        facts = facts_of(answer.op, answer.case)
        if "forward" in self.directions:
            facts.pop("upstream", None)
        tuned = self._verdict(answer).configurations
        several = len({kernel for kernel, _ in self._parameters}) > 1
        for kernel, name in self._parameters:
            values = tuned[kernel].values if kernel in tuned else [{}]
            found = list(dict.fromkeys(value.get(name, "not launched") for value in values))
            key = f"{kernel}'s {name}" if several else name
            facts[key] = found[0] if len(found) == 1 else " and ".join(sorted(map(str, found)))
        if self._parameters:
            launched = any(each.launches for each in tuned.values())
            facts["an autotuned kernel"] = "tried before the call" if launched else "launched once"
        return facts

    @cached_property
    def _parameters(self) -> dict[tuple[str, str], None]:
        """Each autotuned kernel with the name of a parameter."""
        return {
            (kernel, name): None
            for answer in (*self.failing, *self._passing)
            for kernel, tuned in self._verdict(answer).configurations.items()
            for values in tuned.values
            for name in values
        }


def coverage(verdicts: Iterable[Verdict]) -> tuple[set[str], list[str]]:
    """Return the solutions that answer no case, and a line on each solution with few answers.

    A failure in either direction is an answer too. A solution that needs a GPU, where there is
    none, may answer no case.
    """
    silent, lines = set(), []
    for solution, own in by_solution(verdicts).items():
        cases = {verdict.case for verdict in own}
        answered = {verdict.case for verdict in own if verdict.verdict != "UNSUPPORTED"}
        without_gpu = {verdict.case for verdict in own if verdict.kind is Kind.NO_GPU}
        if not answered and without_gpu:
            needed = f"{len(without_gpu)} of {counted(len(cases))} need a GPU"
            lines.append(f"{solution} is not judged: {needed}, and none is here")
        elif not answered:
            silent.add(solution)
            lines.append(f"{solution} answers no case: it leaves all {len(cases)} unsupported")
        elif 10 * len(answered) < len(cases):
            count = f"{len(answered)} of {len(cases)} cases"
            lines.append(f"{solution} answers {count}, fewer than a tenth")
    return silent, lines


def by_solution(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """Return the verdicts of each solution."""
    found: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        found[verdict.solution].append(verdict)
    return found


class Answers:
    """The answers of solutions to the cases of one tier, by the names of solution and case."""

    def __init__(self) -> None:
        """Start with no answer."""
        self.by_name: dict[Names, CaseVerdicts] = {}

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts of all answers."""
        return [each for answer in self.by_name.values() for each in answer.verdicts.values()]

    @property
    def failed(self) -> bool:
        """Whether any solution failed, or answered no case."""
        return bool(self.failures or coverage(self.verdicts)[0])

    @property
    def failures(self) -> dict[Names, tuple[str, ...] | None]:
        """The names of the failing answers, with `Verdict.after`."""
        failures = {}
        for key, answer in self.by_name.items():
            if after := [failure.after for _, failure in answer.failures]:
                known = [names for names in after if names is not None]
                failures[key] = max(known, key=bool, default=None)
        return failures

    def update(
        self, failed: Mapping[Names, tuple[str, ...] | None]
    ) -> dict[Names, tuple[str, ...] | None]:
        """Return earlier failures, with the answers of this report in place of their cases'."""
        left = {key: after for key, after in failed.items() if key not in self.by_name}
        return left | self.failures

    @property
    def share(self) -> str:
        """The share of passing cases, and why the others are not supported; "" without a pass.

        For example `10 of 123 cases; 113 not supported: interleaved, does not take cp_size`, or
        `10 of 123 cases; 123 not supported or in part: ...` if some passing cases lack backward.
        The kinds of notes follow: `10 of 10 cases; but no kernel was launched (3 cases)`.
        """
        answers = list(self.by_name.values())
        passing = [each for each in answers if "PASSED" in map(each.verdict, each.verdicts)]
        lacking = [answer for answer in answers if answer.unsupported]
        words = f"{len(passing)} of {len(answers)} cases" if passing else ""
        if passing and lacking:
            partly = " or in part" * any(answer in passing for answer in lacking)
            reasons = Counter(printable(why) for each in lacking for why in each.unsupported)
            shown = [reason for reason, _ in reasons.most_common(REASONS)]
            more = ["..."] * (len(reasons) > REASONS)
            words += f"; {len(lacking)} not supported{partly}: {', '.join(shown + more)}"
        noted = Counter(note for answer in answers for note in answer.notes).most_common()
        but = ", ".join(f"{note} ({counted(n)})" for note, n in noted)
        return words + f"; but {but}" * bool(but)

    def groups(self) -> list[Group]:
        """Return the failures by solution, directions and verdict."""
        failing: dict[tuple[str, tuple[Direction, ...], str], list[CaseVerdicts]] = defaultdict(
            list
        )
        everyone: dict[str, list[CaseVerdicts]] = defaultdict(list)
        for (solution, _), answer in self.by_name.items():
            everyone[solution].append(answer)
            for directions, failure in answer.failures:
                failing[solution, directions, failure.verdict].append(answer)
        groups = []
        for (solution, directions, verdict), failures in failing.items():
            answered = [answer for answer in everyone[solution]
                        if answer.verdict(directions[0]) != "UNSUPPORTED"]  # fmt: skip
            groups.append(Group(solution, directions, verdict, failures, answered))
        return groups

    def unexplained(self, explained: Collection[tuple[str, Direction]]) -> Iterator[Group]:
        """Yield each group without a known property and cause.

        A group of all cases and one that depends on earlier calls are left out, since no property
        of a case decides whether they fail.

        Args:
            explained: The solutions and directions with a known cause.
        """
        for group in self.groups():
            known = any((group.solution, direction) in explained for direction in group.directions)
            alone = group.verdict in ENDED | BEFORE_LAUNCH or group.smallest[0].after is not None
            if not (known or alone or group.everywhere or group.condition):
                yield group


def counted(count: int) -> str:
    """Return the number of cases in words."""
    return f"{count} case{'s' * (count > 1)}"
