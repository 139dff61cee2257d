"""Report the answers of one tier: failures in groups, what a group's cases share, and coverage."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common import paths, source
from common.board import terminal
from common.commands.failing_condition import Group
from common.errors import Kind
from common.grading.mismatch import drawn
from common.printable import columns, printable, say
from common.records.lines import headings
from common.spec import Case, Direction, Op
from common.verdicts import Verdict, text_of

REASONS = 3
"""The number of reasons to show for unsupported cases, the most common reasons first."""
MARGIN = 4 * " "
AFTER_LAUNCHES = (
    "wrong only after an autotuner has launched {} on the same arguments, as on a GPU: list what a "
    "launch adds to in reset_to_zero, what it overwrites in restore_value"
)
"""The line for failures that a tuner's launches cause."""
Names = tuple[str, str]
"""The names of a solution and of a case."""
Failures = dict[Names, tuple[str, ...] | None]
"""The names of failing answers, with `Verdict.after`."""


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


def coverage(verdicts: Iterable[Verdict]) -> tuple[set[str], list[str]]:
    """Return the solutions that answer no case, and a line on each solution with few answers.

    A failure in either direction is an answer too. A solution that needs a GPU, where there is
    none, may answer no case.
    """
    by_solution: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_solution[verdict.solution].append(verdict)
    silent, lines = set(), []
    for solution, own in by_solution.items():
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


def counted(count: int) -> str:
    """Return the number of cases in words."""
    return f"{count} case{'s' * (count > 1)}"


class TierReport:
    """Report the answers of one tier: a group's first failure at once, a summary at the end."""

    def __init__(
        self, tier: str, verbose: bool, picture: bool = False, watched: bool = False
    ) -> None:
        """Start with no answer.

        Args:
            tier: The name of the tier.
            verbose: Whether to print every failure at once.
            picture: Whether to print a picture of the wrong elements after each printed failure.
            watched: Whether to print the first answer at once even if it is no failure.
        """
        self.by_name: dict[Names, CaseVerdicts] = {}
        self.tier, self._verbose, self._picture, self._watched = tier, verbose, picture, watched
        self._printed: set[tuple[object, ...]] = set()
        """The printed excerpts of the source, and the printed kinds of failures: solution,
        directions and verdict."""

    # --- answers ----------------------------------------------------------------------------------

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
        """The failing answers."""
        after = {key: [failure.after for _, failure in answer.failures]
                 for key, answer in self.by_name.items()}  # fmt: skip
        return {key: max(several, key=lambda names: -1 if names is None else len(names))
                for key, several in after.items() if several}  # fmt: skip

    def update(self, failed: Failures) -> Failures:
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
        failing: dict[tuple[str, tuple[Direction, ...], str], list[CaseVerdicts]] = {}
        for (solution, _), answer in self.by_name.items():
            for directions, failure in answer.failures:
                key = solution, directions, failure.verdict
                failing.setdefault(key, []).append(answer)
        return [
            Group(*key, failures, [answer for answer in self._of(key[0])
                                   if answer.verdict(key[1][0]) != "UNSUPPORTED"])
            for key, failures in failing.items()
        ]  # fmt: skip

    def _of(self, solution: str) -> list[CaseVerdicts]:
        return [answer for (name, _), answer in self.by_name.items() if name == solution]

    # --- lines ------------------------------------------------------------------------------------

    def add(self, op: Op[Any], case: Case, directions: Sequence[Verdict]) -> None:
        """Add the verdicts of one solution and case, one for each direction.

        They replace earlier verdicts of the same solution and case.
        """
        name = directions[0].solution
        answer = CaseVerdicts(op, case, {verdict.direction: verdict for verdict in directions})
        if self._watched and not self.by_name and not answer.failures:
            names = dict.fromkeys(verdict.verdict for verdict in directions)
            print(f"{name} {case.name}: {' and '.join(names)}", flush=True)
        earlier = self.by_name.pop((name, case.name), None)
        for verdict in directions:
            for note in verdict.notes if self._verbose else ():
                print(printable(f"{name} {verdict.case} {verdict.direction}, a note: {note}"))
        for failing, failure in answer.failures:
            if self._is_new(name, failing, failure.verdict):
                before = earlier and earlier.verdicts[failing[0]].verdict
                interpreted = f", {before} in the interpreter" if before else ""
                where = f"{name} {failure.case} {' and '.join(failing)}"
                print(f"{where}: {failure.verdict}{interpreted}")
                self._show(failure.reason, failure)
        self.by_name[name, case.name] = answer

    def end(self) -> None:
        """Print a summary of each group, the number of cases by verdict, and unsupported cases."""
        groups = self.groups()
        for group in groups:
            self._summarize(group)
        for solution in dict.fromkeys(solution for solution, _ in self.by_name):
            answers = self._of(solution)
            outcomes = Counter(answer.outcome for answer in answers).most_common()
            names = ", ".join(f"{n} {name}" for name, n in outcomes)
            hidden = any(group.solution == solution and len(group.failing) > len(group.smallest)
                         for group in groups)  # fmt: skip
            more = " (--verbose shows each)" * (hidden and not self._verbose)
            say(f"{solution}, {self.tier}: {names} of {counted(len(answers))}{more}")
            for line in _configurations(answers):
                say(line, MARGIN)
            unsupported = (f"unsupported: {why}" for each in answers for why in each.unsupported)
            notes = (f"note: {note}" for each in answers for note in each.notes)
            for lines in (unsupported, notes):
                for line, n in Counter(lines).most_common():
                    say(f"{line} ({counted(n)})", MARGIN)
        for line in coverage(self.verdicts)[1]:
            print(line)

    def _summarize(self, group: Group) -> None:
        """Print a group's condition and smallest cases, unless all of it is already printed."""
        if kernels := group.after_launches:
            say(f"{group.where}: {AFTER_LAUNCHES.format(kernels)}")
        if not group.condition and len(group.smallest) == 1:
            return
        count = group.everywhere or f"{len(group.failing)} of {len(group.answered)} cases"
        say(f"{group.where}: {group.verdict} in {count}")
        if group.condition:
            say(group.condition, MARGIN)
        for verdict in () if self._verbose else group.smallest:
            self._show(f"{verdict.case}: {verdict.reason}", verdict)

    def _show(self, line: str, failure: Verdict) -> None:
        """Print a failure's line, and its source the first time; with `picture`, its picture."""
        folder = paths.CONTRIBUTORS / failure.solution.partition("/")[0]
        say(line, MARGIN)
        room = columns() - len(MARGIN) if columns() else None
        excerpt = tuple(source.excerpt(failure.places, folder, room))
        shown = excerpt if self._is_new(failure.solution, *excerpt) else ()
        tuned = [f"launched: {failure.tuned}"] if failure.tuned else []
        plan = [f"asked {step}" for step in failure.plan.splitlines()] if self._verbose else []
        for text in (*shown, *tuned, *plan):
            print(f"{MARGIN}{printable(text)}", flush=True)
        if self._picture and failure.picture:
            console = terminal.console()
            # captured, since the console would overwrite the progress bar, unlike `print`
            with console.capture() as captured:
                console.print(drawn(failure.picture, MARGIN), soft_wrap=True)
            print(captured.get(), end="", flush=True)

    def _is_new(self, *key: object) -> bool:
        """Return whether a kind of failure or an excerpt is to print: with verbose, each is."""
        new = self._verbose or key not in self._printed
        self._printed.add(key)
        return new


def _configurations(answers: Iterable[CaseVerdicts]) -> Iterator[str]:
    """Yield a line for each autotuned kernel, such as `_kernel: 5 of 8 configurations`."""
    taken: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = {}
    for verdict in (each for answer in answers for each in answer.verdicts.values()):
        for kernel, tuned in verdict.configurations.items():
            taken[kernel].update(map(text_of, tuned.values))
            counts[kernel] = max(counts.get(kernel, 0), tuned.count, len(taken[kernel]))
    for kernel, count in counts.items():
        yield f"{kernel}: {len(taken[kernel])} of {count} configurations"
