"""The answers of one tier: when each solution fails, its smallest failures, and its coverage."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from common import paths
from common.board import terminal
from common.grading.when import when
from common.printable import printable
from common.source import is_code
from common.spec import Case, Direction, Fact, Op
from common.verdicts import BEFORE_LAUNCH, ENDED, RIGHT, SOME, WRONG, Picture, Verdict

SHOWN = 2
"""The cases shown of each group of failures, the smallest ones."""
REASONS = 3
"""The reasons shown for which verdicts are not supported, the commonest ones."""
COUNT = re.compile(r" \(\d+ of \d+\)$")
_PLACE = re.compile(r"line (\d+) of ([^/\s:]+\.py)")
STYLES = {WRONG: "red", SOME: "yellow", RIGHT: "dim"}
MARGIN = 4 * " "
TICKS = 8
"""The columns of a picture from one index in its heading to the next."""
FEW = 0.1
"""The share of a tier's cases below which a solution is told how few it answers."""


@dataclass(frozen=True)
class Answer:
    """The verdicts of one solution on one case."""

    op: Op[Any]
    case: Case
    verdicts: Mapping[Direction, Verdict]

    @property
    def failures(self) -> Iterator[tuple[tuple[Direction, ...], Verdict]]:
        """Yield each failure once, with the directions that it is the verdict of."""
        several: dict[tuple[str, str], list[Direction]] = defaultdict(list)
        for direction, found in self.verdicts.items():
            if not found.fine:
                several[found.verdict, found.reason].append(direction)
        for directions in several.values():
            yield tuple(directions), self.verdicts[directions[0]]

    @property
    def unsupported(self) -> set[str]:
        """The reasons for which the solution leaves a direction out."""
        several = self.verdicts.values()
        return {found.reason for found in several if found.verdict == "UNSUPPORTED"}

    @property
    def size(self) -> tuple[int, int]:
        """The least bytes and operations of the case."""
        work = self.op.work(self.case, "forward")
        return work.bytes, work.flops

    @property
    def empty(self) -> bool:
        """Whether the output has no element, so that no mistake shows."""
        return math.prod(self.op.output(self.case)) == 0


class Count(NamedTuple):
    """The failures of a group among the cases that are answered in its direction."""

    fails: int
    answered: int
    elements: int | None
    """The answered cases that have an element; None where one that has none fails too."""

    @property
    def everywhere(self) -> bool:
        """Whether every case fails that is answered and could show the mistake."""
        return self.fails in (self.answered, self.elements)

    def __str__(self) -> str:
        """Return the numbers in words."""
        if self.fails == self.answered:
            return f"every case ({self.fails})"
        if self.everywhere:
            return f"every case that has an element ({self.fails})"
        return f"{self.fails} of {self.answered} cases"


@dataclass(frozen=True)
class Group:
    """The failures of one solution with one verdict in the same directions."""

    solution: str
    directions: tuple[Direction, ...]
    verdict: str
    answers: list[Answer] = field(default_factory=list)

    @property
    def hides(self) -> bool:
        """Whether the report shows fewer failures than there are."""
        return len(self.answers) > len(self.smallest)

    @property
    def by_size(self) -> list[Answer]:
        """The failing answers, the smallest case first."""
        return sorted(self.answers, key=lambda each: each.size)

    @property
    def smallest(self) -> list[Verdict]:
        """The failures of the smallest cases, each reason and each line of source once.

        Reasons that differ in a last count alone, such as "(4 of 4)", are the same.
        """
        several: dict[str, Verdict] = {}
        for answer in self.by_size:
            found = answer.verdicts[self.directions[0]]
            several.setdefault(place_of(found.reason) or COUNT.sub("", found.reason), found)
        return list(several.values())[:SHOWN]

    def when(self, answers: Iterable[Answer]) -> str:
        """Return the property that separates the failures from the passes, if there is one.

        Args:
            answers: All answers of the solution in the tier.
        """
        passes = [answer for answer in answers if self._verdict(answer) == "PASSED"]
        both = ([self._facts(each) for each in some if not each.empty]
                for some in (self.answers, passes))  # fmt: skip
        return when(*both)

    def count(self, answers: Iterable[Answer]) -> Count:
        """Return the number of failures, of the cases that are answered in this direction."""
        answered = [each for each in answers if self._verdict(each) not in ("", "UNSUPPORTED")]
        elements = sum(not each.empty for each in answered)
        some_empty = any(each.empty for each in self.answers)
        return Count(len(self.answers), len(answered), elements if not some_empty else None)

    def _verdict(self, answer: Answer) -> str:
        """Return the verdict in this direction, empty where the case does not ask for it."""
        found = answer.verdicts.get(self.directions[0])
        return found.verdict if found else ""

    def _facts(self, answer: Answer) -> dict[str, Fact]:
        """Return the case's properties, less the upstream gradient's where forward fails."""
        facts = dict(answer.op.facts(answer.case))
        if "forward" in self.directions:
            facts.pop("upstream", None)
        return facts


def _before(earlier: Answer | None, where: Sequence[Direction]) -> str:
    """Return what follows a verdict that takes the place of the interpreter's."""
    return f", {earlier.verdicts[where[0]].verdict} in the interpreter" if earlier else ""


class Coverage:
    """The cases of a tier, by solution, and those that a solution does not call unsupported."""

    def __init__(self) -> None:
        """Begin without a case."""
        self._cases: dict[str, set[str]] = defaultdict(set)
        self._answered: dict[str, set[str]] = defaultdict(set)

    def add(self, found: Sequence[Verdict]) -> None:
        """Add the verdicts of one case; a failure in either direction is an answer too."""
        for verdict in found:
            self._cases[verdict.solution].add(verdict.case)
            if verdict.verdict != "UNSUPPORTED":
                self._answered[verdict.solution].add(verdict.case)

    @property
    def silent(self) -> set[str]:
        """The solutions that answer no case."""
        return self._cases.keys() - self._answered.keys()

    def lines(self) -> Iterator[str]:
        """Yield a line on each solution that answers no case, or fewer than a tenth of them."""
        for solution, cases in self._cases.items():
            count = len(self._answered.get(solution, ()))
            if not count:
                yield f"{solution} answers no case: it leaves all {len(cases)} unsupported"
            elif count < FEW * len(cases):
                yield f"{solution} answers {count} of {len(cases)} cases, fewer than a tenth"


class TierReport:
    """The answers of one tier: the first failure of each group at once, a summary in the end."""

    def __init__(self, tier: str, verbose: bool, picture: bool = False) -> None:
        """Start with no answer.

        Args:
            tier: The name of the tier.
            verbose: Whether every failure is shown at once.
            picture: Whether a picture of the wrong elements follows each failure that is shown.
        """
        self.tier, self._verbose, self._picture = tier, verbose, picture
        self._answers: dict[str, dict[str, Answer]] = defaultdict(dict)
        self._groups: dict[tuple[str, tuple[Direction, ...], str], Group] = {}
        self._coverage = Coverage()

    @property
    def failed(self) -> bool:
        """Whether any solution failed, or answered no case."""
        return bool(self._groups or self._coverage.silent)

    @property
    def share(self) -> str:
        """The share of verdicts that are passes, and why others are none; "" if there is no pass.

        For example `20 of 246 verdicts; 226 not supported: interleaved, does not take cp_size`.
        """
        verdicts = [found for answers in self._answers.values() for answer in answers.values()
                    for found in answer.verdicts.values()]  # fmt: skip
        passed = sum(found.verdict == "PASSED" for found in verdicts)
        reasons = Counter(
            printable(found.reason) for found in verdicts if found.verdict == "UNSUPPORTED"
        )
        share = f"{passed} of {len(verdicts)} verdicts" if passed else ""
        if not (passed and reasons):
            return share
        shown = [reason for reason, _ in reasons.most_common(REASONS)]
        more = ["..."] * (len(reasons) > REASONS)
        return f"{share}; {reasons.total()} not supported: {', '.join(shown + more)}"

    def groups(self, solution: str) -> Iterator[Group]:
        """Yield the failures of a solution, by verdict and directions."""
        yield from (each for each in self._groups.values() if each.solution == solution)

    def when(self, group: Group) -> str:
        """Return the property that separates a group's failures from the passes, "" for none."""
        return group.when(self._answers[group.solution].values())

    def everywhere(self, group: Group) -> bool:
        """Return whether every case that is answered and has an element fails so."""
        return group.count(self._answers[group.solution].values()).everywhere

    def unexplained(self, told: Collection[tuple[str, Direction]]) -> Iterator[tuple[Group, Case]]:
        """Yield each group that no property and no cause explains, and its smallest case.

        A group of all cases is left out, since it needs no property to fail.

        Args:
            told: The solutions and directions whose cause is known.
        """
        for group in self._groups.values():
            known = any((group.solution, each) in told for each in group.directions)
            if not (
                known
                or group.verdict in ENDED | BEFORE_LAUNCH
                or self.everywhere(group)
                or self.when(group)
            ):
                yield group, group.by_size[0].case

    def add(self, op: Op[Any], case: Case, directions: Sequence[Verdict]) -> None:
        """Take the verdicts of one solution and case, one for each direction.

        Those of a case that was taken before replace the earlier ones.
        """
        answer = Answer(op, case, {found.direction: found for found in directions})
        earlier = self._forget(directions[0])
        self._coverage.add(directions)
        for found in directions:
            for note in found.notes if self._verbose else ():
                print(f"{found.solution} {found.case} {found.direction}, a note: {note}")
        self._answers[directions[0].solution][case.name] = answer
        for where, found in answer.failures:
            key = found.solution, where, found.verdict
            group = self._groups.setdefault(key, Group(*key))
            group.answers.append(answer)
            if self._verbose or len(group.answers) == 1:
                print(
                    f"{found.solution} {found.case} {' and '.join(where)}: {found.verdict}", end=""
                )
                print(_before(earlier, where))
                self._show(found.reason, found)

    def _forget(self, found: Verdict) -> Answer | None:
        """Return the answer that was taken before to a verdict's case, and forget it."""
        answer = self._answers[found.solution].pop(found.case, None)
        for key, group in list(self._groups.items()) if answer else ():
            if answer in group.answers:
                group.answers.remove(answer)
            if not group.answers:
                del self._groups[key]
        return answer

    def end(self) -> None:
        """Print a summary of each group, the number of each verdict, and what is not answered."""
        for group in self._groups.values():
            self._summarize(group)
        for solution, answers in self._answers.items():
            verdicts = [found for each in answers.values() for found in each.verdicts.values()]
            counted = Counter(found.verdict for found in verdicts).most_common()
            hidden = any(group.hides for group in self.groups(solution))
            more = " (--verbose shows each)" if hidden and not self._verbose else ""
            print(
                f"{solution}, {self.tier}: {', '.join(f'{n} {name}' for name, n in counted)}{more}"
            )
            for reason, n in Counter(
                each for one in answers.values() for each in one.unsupported
            ).most_common():
                print(f"    unsupported: {printable(reason)} ({n} case{'s' * (n > 1)})")
        for line in self._coverage.lines():
            print(line)

    def _summarize(self, group: Group) -> None:
        """Print when a group fails, then its smallest cases, as far as no line has said it yet."""
        answers = self._answers[group.solution].values()
        when, failures = group.when(answers), group.smallest
        if not when and len(failures) == 1:
            return
        count = group.count(answers)
        print(f"{group.solution} {' and '.join(group.directions)}: {group.verdict} in {count}")
        if when:
            print(f"    {when}")
        for found in () if self._verbose else failures:
            self._show(f"{found.case}: {found.reason}", found)

    def _show(self, line: str, found: Verdict) -> None:
        """Print a line on a failure, and its picture where one is asked for."""
        folder = paths.CONTRIBUTORS / found.solution.partition("/")[0]
        plan = [f"asked {each}" for each in found.plan.splitlines()] if self._verbose else []
        for each in (line, *excerpt(found.reason, folder), *plan):
            print(f"    {printable(each)}", flush=True)
        if self._picture and found.picture:
            terminal.console().print(drawn(found.picture), soft_wrap=True)


# --- places in the source -------------------------------------------------------------------------


def place_of(reason: str) -> str:
    """Return the first place that a reason names, such as `line 31 of rope.py`, or ""."""
    found = _PLACE.search(reason)
    return found[0] if found else ""


def excerpt(reason: str, folder: Path) -> list[str]:
    """Return the lines that show each place of the reason in the folder's files.

    For `ValueError: ..., line 31 of rope.py: tl.arange(0, d)` these are

        rope.py:31
        31 |     col = tl.arange(0, d)
           |           ^^^^^^^^^^^^^^^
    """
    return [line for found in _PLACE.finditer(reason) for line in _lines_of(found, folder)]


def _lines_of(found: re.Match[str], folder: Path) -> Iterator[str]:
    number, name = found.groups()
    path = folder / name
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    if not 0 < int(number) <= len(lines):
        return
    line = printable(lines[int(number) - 1])
    named = _common(found.string[found.end() :].removeprefix(": "), line)
    yield f"{name}:{number}"
    yield f"{number} | {line}"
    if named:
        yield f"{' ' * len(number)} | {' ' * line.index(named)}{'^' * len(named)}"


def _common(text: str, line: str) -> str:
    """Return the expression at the start of the text, after which words may follow.

    It is the longest start that the line has, "" where that is no code: the line has changed.
    """
    lengths = range(len(text), 0, -1)
    longest = next((text[:n].strip() for n in lengths if text[:n].strip() in line), "")
    return longest if is_code(longest) else ""


# --- pictures -------------------------------------------------------------------------------------


def drawn(picture: Picture) -> Text:
    """Return the drawing: a heading, a line for each row of cells, and the meaning of a cell.

    Example, of a result of 4 positions and 16 features:

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
    return drawing.append(f"{indent}{_legend(picture)}")


def _legend(picture: Picture) -> str:
    """Return the meaning of the marks and of a cell."""
    marks = "".join(picture.cells)
    named = ((WRONG, "wrong"), (SOME, "wrong in part"), (RIGHT, "right"))
    meaning = "  ".join(f"{mark} {words}" for mark, words in named if mark in marks)
    height, width = picture.block
    cell = f"{height} x {width} elements" if picture.block != (1, 1) else ""
    others = f"every {' and '.join(picture.others)}" if picture.others else ""
    holds = " of ".join(filter(None, (cell, others)))
    return meaning + f"; a cell: {holds}" * bool(holds)
