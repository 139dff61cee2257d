"""The answers of one tier: when each solution fails, its smallest failures, and its coverage."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from common import paths
from common.board import terminal
from common.grading.failing_condition import failing_condition
from common.printable import printable, wrapped
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
    def outcome(self) -> str:
        """The verdict, or that of each direction where they differ."""
        several = {direction: found.verdict for direction, found in self.verdicts.items()}
        if len(set(several.values())) == 1:
            return next(iter(several.values()))
        return " and ".join(f"{direction} {verdict}" for direction, verdict in several.items())

    def has(self, verdict: str) -> bool:
        """Return whether it is the verdict of a direction."""
        return any(found.verdict == verdict for found in self.verdicts.values())

    @property
    def empty(self) -> bool:
        """Whether the output has no element, so that no mistake shows."""
        return math.prod(self.op.output(self.case)) == 0


@dataclass(frozen=True)
class Group:
    """The failures of one solution with one verdict in the same directions."""

    solution: str
    directions: tuple[Direction, ...]
    verdict: str
    failing: Sequence[Answer]
    everyone: Sequence[Answer]
    """All answers of the solution in the tier."""

    @property
    def by_size(self) -> list[Answer]:
        """The failing answers, the case that moves and computes least first."""

        def size(answer: Answer) -> tuple[int, int]:
            work = answer.op.work(answer.case, "forward")
            return work.bytes, work.flops

        return sorted(self.failing, key=size)

    @property
    def smallest(self) -> list[Verdict]:
        """The failures of the smallest cases, each reason and each line of source once.

        Reasons that differ in a last count alone, such as "(4 of 4)", are the same.
        """
        several: dict[str, Verdict] = {}
        for answer in self.by_size:
            found = answer.verdicts[self.directions[0]]
            place = _PLACE.search(found.reason)
            several.setdefault(place[0] if place else COUNT.sub("", found.reason), found)
        return list(several.values())[:SHOWN]

    @property
    def condition(self) -> str:
        """The property that separates the failures from the passes, "" if there is none."""
        passing = [each for each in self.everyone if self._verdict(each) == "PASSED"]
        failing, passed = ([self._facts(each) for each in some if not each.empty]
                           for some in (self.failing, passing))  # fmt: skip
        return failing_condition(failing, passed)

    @property
    def everywhere(self) -> str:
        """How many failures there are, where every case fails that could show the mistake."""
        fails, answered = len(self.failing), self._answered
        if fails == len(answered):
            return f"every case ({fails})"
        elements = sum(not each.empty for each in answered)
        if fails == elements and not any(each.empty for each in self.failing):
            return f"every case that has an element ({fails})"
        return ""

    @property
    def count(self) -> str:
        """The number of failures, of the cases that are answered in this direction, in words."""
        return self.everywhere or f"{len(self.failing)} of {len(self._answered)} cases"

    @property
    def _answered(self) -> list[Answer]:
        return [each for each in self.everyone if self._verdict(each) not in ("", "UNSUPPORTED")]

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


def coverage(found: Iterable[Verdict]) -> tuple[set[str], list[str]]:
    """Return the solutions that answer no case, and a line on each that answers few or none.

    A failure in either direction is an answer too.
    """
    cases: dict[str, set[str]] = defaultdict(set)
    answered: dict[str, set[str]] = defaultdict(set)
    for verdict in found:
        cases[verdict.solution].add(verdict.case)
        if verdict.verdict != "UNSUPPORTED":
            answered[verdict.solution].add(verdict.case)
    lines = []
    for solution, asked in cases.items():
        count = len(answered[solution])
        if not count:
            lines.append(f"{solution} answers no case: it leaves all {len(asked)} unsupported")
        elif count < FEW * len(asked):
            lines.append(f"{solution} answers {count} of {len(asked)} cases, fewer than a tenth")
    return {solution for solution in cases if not answered[solution]}, lines


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
        self._answers: dict[tuple[str, str], Answer] = {}
        """By the names of solution and case."""

    @property
    def failed(self) -> bool:
        """Whether any solution failed, or answered no case."""
        verdicts = list(self._verdicts())
        return not all(verdict.fine for verdict in verdicts) or bool(coverage(verdicts)[0])

    @property
    def asked(self) -> set[tuple[str, str]]:
        """The names of solution and case of all answers."""
        return set(self._answers)

    @property
    def failures(self) -> set[tuple[str, str]]:
        """The names of solution and case of the answers that fail."""
        return {key for key, answer in self._answers.items() if any(answer.failures)}

    @property
    def share(self) -> str:
        """The share of cases that pass, if in part, and why others do not; "" if there is no pass.

        For example `10 of 123 cases; 113 not supported: interleaved, does not take cp_size`, and
        `10 of 123 cases; 123 not supported or in part: ...` where some of the passes lack backward.
        """
        several = list(self._answers.values())
        passed = sum(answer.has("PASSED") for answer in several)
        lacking = [answer for answer in several if answer.has("UNSUPPORTED")]
        share = f"{passed} of {len(several)} cases" if passed else ""
        if not (passed and lacking):
            return share
        reasons = Counter(
            reason
            for answer in lacking
            for reason in {
                printable(verdict.reason)
                for verdict in answer.verdicts.values()
                if verdict.verdict == "UNSUPPORTED"
            }
        )
        shown = [reason for reason, _ in reasons.most_common(REASONS)]
        more = ["..."] * (len(reasons) > REASONS)
        partly = " or in part" * any(answer.has("PASSED") for answer in lacking)
        return f"{share}; {len(lacking)} not supported{partly}: {', '.join(shown + more)}"

    def _verdicts(self) -> Iterator[Verdict]:
        for answer in self._answers.values():
            yield from answer.verdicts.values()

    def groups(self) -> list[Group]:
        """Return the failures by solution, directions and verdict."""
        failing: dict[tuple[str, tuple[Direction, ...], str], list[Answer]] = defaultdict(list)
        everyone: dict[str, list[Answer]] = defaultdict(list)
        for (solution, _), answer in self._answers.items():
            everyone[solution].append(answer)
            for where, found in answer.failures:
                failing[solution, where, found.verdict].append(answer)
        return [Group(*key, several, everyone[key[0]]) for key, several in failing.items()]

    def unexplained(
        self, explained: Collection[tuple[str, Direction]]
    ) -> Iterator[tuple[Group, Case]]:
        """Yield each group that no property and no cause explains, and its smallest case.

        A group of all cases is left out, since it needs no property to fail.

        Args:
            explained: The solutions and directions whose cause is known.
        """
        for group in self.groups():
            known = any((group.solution, direction) in explained for direction in group.directions)
            ended = group.verdict in ENDED | BEFORE_LAUNCH
            if not (known or ended or group.everywhere or group.condition):
                yield group, group.by_size[0].case

    def add(self, op: Op[Any], case: Case, directions: Sequence[Verdict]) -> None:
        """Take the verdicts of one solution and case, one for each direction.

        Those of a case that was taken before replace the earlier ones.
        """
        name = directions[0].solution
        answer = Answer(op, case, {verdict.direction: verdict for verdict in directions})
        earlier = self._answers.pop((name, case.name), None)
        for verdict in directions:
            for note in verdict.notes if self._verbose else ():
                print(f"{name} {verdict.case} {verdict.direction}, a note: {note}")
        for where, found in answer.failures:
            if self._verbose or not self._has(name, where, found.verdict):
                before = earlier and earlier.verdicts[where[0]].verdict
                instead = f", {before} in the interpreter" if before else ""
                print(f"{name} {found.case} {' and '.join(where)}: {found.verdict}{instead}")
                self._show(found.reason, found)
        self._answers[name, case.name] = answer

    def _has(self, solution: str, where: tuple[Direction, ...], verdict: str) -> bool:
        """Return whether a solution has failed so on a case before."""
        return any(
            name == solution and (where, verdict) == (directions, found.verdict)
            for (name, _), answer in self._answers.items()
            for directions, found in answer.failures
        )

    def end(self) -> None:
        """Print a summary of each group, the cases of each verdict, and what is not answered."""
        groups, verdicts = self.groups(), list(self._verdicts())
        for group in groups:
            self._summarize(group)
        for solution in dict.fromkeys(verdict.solution for verdict in verdicts):
            ours = [verdict for verdict in verdicts if verdict.solution == solution]
            outcomes = [each.outcome for key, each in self._answers.items() if key[0] == solution]
            counted = ", ".join(f"{n} {name}" for name, n in Counter(outcomes).most_common())
            hidden = any(
                len(group.failing) > len(group.smallest)
                for group in groups
                if group.solution == solution
            )
            more = " (--verbose shows each)" if hidden and not self._verbose else ""
            cases = f"{len(outcomes)} case{'s' * (len(outcomes) > 1)}"
            print(wrapped(f"{solution}, {self.tier}: {counted} of {cases}{more}"))
            left_out = dict.fromkeys(
                (found.case, found.reason) for found in ours if found.verdict == "UNSUPPORTED"
            )
            for reason, n in Counter(reason for _, reason in left_out).most_common():
                line = f"unsupported: {printable(reason)} ({n} case{'s' * (n > 1)})"
                print(wrapped(line, MARGIN))
        for line in coverage(verdicts)[1]:
            print(line)

    def _summarize(self, group: Group) -> None:
        """Print when a group fails, then its smallest cases, as far as no line has said it yet."""
        condition, failures = group.condition, group.smallest
        if not condition and len(failures) == 1:
            return
        directions = " and ".join(group.directions)
        print(wrapped(f"{group.solution} {directions}: {group.verdict} in {group.count}"))
        if condition:
            print(wrapped(condition, MARGIN))
        for verdict in () if self._verbose else failures:
            self._show(f"{verdict.case}: {verdict.reason}", verdict)

    def _show(self, line: str, found: Verdict) -> None:
        """Print a line on a failure, and its picture where one is asked for."""
        folder = paths.CONTRIBUTORS / found.solution.partition("/")[0]
        plan = [f"asked {each}" for each in found.plan.splitlines()] if self._verbose else []
        print(wrapped(printable(line), MARGIN), flush=True)
        for each in (*excerpt(found.reason, folder), *plan):
            print(f"{MARGIN}{printable(each)}", flush=True)
        if self._picture and found.picture:
            console = terminal.console()
            with (
                console.capture() as captured
            ):  # it would print over the bar, where `print` does not
                console.print(drawn(found.picture), soft_wrap=True)
            print(captured.get(), end="", flush=True)


# --- places in the source -------------------------------------------------------------------------


def excerpt(reason: str, folder: Path) -> Iterator[str]:
    """Yield the lines that show each place of the reason in the folder's files.

    For `ValueError: ..., line 31 of rope.py: tl.arange(0, d)` these are

        rope.py:31
        31 |     col = tl.arange(0, d)
           |           ^^^^^^^^^^^^^^^
    """
    for match in _PLACE.finditer(reason):
        number, name = match.groups()
        path = folder / name
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        if not 0 < int(number) <= len(lines):
            continue
        line = printable(lines[int(number) - 1])
        yield f"{name}:{number}"
        yield f"{number} | {line}"
        if named := _common(reason[match.end() :].removeprefix(": "), line):
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
