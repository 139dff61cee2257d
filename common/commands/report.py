"""Print the answers of one tier: each solution's failures, their condition, and the coverage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.text import Text

from common import paths, source
from common.board import terminal
from common.commands.answers import Answers, CaseVerdicts, Group, by_solution, counted, coverage
from common.printable import columns, printable, say
from common.spec import Case, Direction, Op
from common.verdicts import RIGHT, SOME, WRONG, Picture, Verdict, text_of

STYLES = {WRONG: "red", SOME: "yellow", RIGHT: "dim"}
MARGIN = 4 * " "
TICKS = 8
"""The columns between two indices in a picture's heading."""
AFTER_LAUNCHES = (
    "wrong only after an autotuner has launched {} on the same arguments, as on a GPU: list what a "
    "launch adds to in reset_to_zero, what it overwrites in restore_value"
)
"""The line for failures that a tuner's launches cause."""


class TierReport(Answers):
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
        super().__init__()
        self.tier, self._verbose, self._picture, self._watched = tier, verbose, picture, watched
        self._kinds: set[tuple[str, tuple[Direction, ...], str]] = set()
        """The printed kinds of failures: solution, directions and verdict."""
        self._excerpts: set[tuple[str, ...]] = set()
        """The printed excerpts of the source; with verbose, none is left out."""

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
            kind = name, failing, failure.verdict
            if self._verbose or kind not in self._kinds:
                self._kinds.add(kind)
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
        for solution, verdicts in by_solution(self.verdicts).items():
            answers = [answer for (name, _), answer in self.by_name.items() if name == solution]
            outcomes = Counter(answer.outcome for answer in answers).most_common()
            names = ", ".join(f"{n} {name}" for name, n in outcomes)
            hidden = any(group.solution == solution and len(group.failing) > len(group.smallest)
                         for group in groups)  # fmt: skip
            more = " (--verbose shows each)" * (hidden and not self._verbose)
            say(f"{solution}, {self.tier}: {names} of {counted(len(answers))}{more}")
            for line in _configurations(verdicts):
                say(line, MARGIN)
            unsupported = Counter(why for answer in answers for why in answer.unsupported)
            for reason, n in unsupported.most_common():
                say(f"unsupported: {reason} ({counted(n)})", MARGIN)
            for note, n in Counter(n for answer in answers for n in answer.notes).most_common():
                say(f"note: {note} ({counted(n)})", MARGIN)
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
        new = self._verbose or (failure.solution, *excerpt) not in self._excerpts
        self._excerpts.add((failure.solution, *excerpt))
        tuned = [f"launched: {failure.tuned}"] if failure.tuned else []
        plan = [f"asked {step}" for step in failure.plan.splitlines()] if self._verbose else []
        for text in (*(excerpt if new else ()), *tuned, *plan):
            print(f"{MARGIN}{printable(text)}", flush=True)
        if self._picture and failure.picture:
            console = terminal.console()
            # captured, since the console would overwrite the progress bar, unlike `print`
            with console.capture() as captured:
                console.print(drawn(failure.picture), soft_wrap=True)
            print(captured.get(), end="", flush=True)


def _configurations(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Yield a line for each autotuned kernel, such as `_kernel: 5 of 8 configurations`."""
    taken: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = {}
    for verdict in verdicts:
        for kernel, tuned in verdict.configurations.items():
            taken[kernel].update(map(text_of, tuned.values))
            counts[kernel] = max(counts.get(kernel, 0), tuned.count, len(taken[kernel]))
    for kernel, count in counts.items():
        yield f"{kernel}: {len(taken[kernel])} of {count} configurations"


def drawn(picture: Picture) -> Text:
    """Return the drawing: a heading, a line for each row of cells, and a legend.

    Example for an output of 4 positions and 16 features:

                   feature
                   0       8
        position 0 ················
                 1 ████████········
                 2 ████████········
                 3 ████████········
                   █ wrong  · right; a cell: every batch and head
    """
    height, width = picture.block
    labels = [str(index * height) if picture.rows else "" for index in range(len(picture.cells))]
    margin = max(map(len, labels))
    indent = " " * (len(MARGIN) + len(picture.rows) + margin + 2)
    ticks = range(0, len(picture.cells[0]), TICKS)
    heading = "".join(f"{index * width:<{TICKS}}" for index in ticks).rstrip()
    drawing = Text(f"{indent}{picture.columns}\n{indent}{heading}\n")
    for index, (label, cells) in enumerate(zip(labels, picture.cells, strict=True)):
        name = "" if index else picture.rows
        drawing.append(f"{MARGIN}{name:{len(picture.rows)}} {label:>{margin}} ")
        for mark in cells:
            drawing.append(mark, STYLES[mark])
        drawing.append("\n")
    named = ((WRONG, "wrong"), (SOME, "wrong in part"), (RIGHT, "right"))
    marks = [f"{mark} {words}" for mark, words in named if mark in "".join(picture.cells)]
    cell = [f"{height} x {width} elements"] * (picture.block != (1, 1))
    others = [f"every {' and '.join(picture.others)}"] * bool(picture.others)
    holds = " of ".join(cell + others)
    return drawing.append(f"{indent}{'  '.join(marks)}" + f"; a cell: {holds}" * bool(holds))
