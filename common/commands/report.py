"""Print the answers of one tier: the first failure of a kind at once, and a summary at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from common import paths, source
from common.board import terminal
from common.commands.answers import Answer, Answers, Group, counted, coverage
from common.grading.mismatch import drawn
from common.printable import columns, printable, say
from common.spec import Case, Op
from common.verdicts import Verdict, text_of

MARGIN = 4 * " "
AFTER_LAUNCHES = (
    "wrong only after an autotuner has launched {} on the same arguments, as on a GPU: list what a "
    "launch adds to in reset_to_zero, what it overwrites in restore_value"
)
"""The line for failures that a tuner's launches cause."""


class TierReport(Answers):
    """The answers of one tier, printed."""

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
        super().__init__()
        self.tier, self._verbose, self._picture, self._watched = tier, verbose, picture, watched
        self._printed: set[tuple[object, ...]] = set()
        """The printed excerpts of the source, and the printed kinds of failures: solution,
        directions and verdict."""

    def add(self, op: Op[Any], case: Case, directions: Sequence[Verdict]) -> None:
        """Add the verdicts of one solution and case, one for each direction.

        They replace earlier verdicts of the same solution and case.
        """
        name = directions[0].solution
        answer = Answer(op, case, {verdict.direction: verdict for verdict in directions})
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
            answers = self.of(solution)
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


def _configurations(answers: Iterable[Answer]) -> Iterator[str]:
    """Yield a line for each autotuned kernel, such as `_kernel: 5 of 8 configurations`."""
    taken: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = {}
    for verdict in (each for answer in answers for each in answer.verdicts.values()):
        for kernel, tuned in verdict.configurations.items():
            taken[kernel].update(map(text_of, tuned.values))
            counts[kernel] = max(counts.get(kernel, 0), tuned.count, len(taken[kernel]))
    for kernel, count in counts.items():
        yield f"{kernel}: {len(taken[kernel])} of {count} configurations"
