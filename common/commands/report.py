"""Report the answers of one tier: each solution's failures, their condition, and the coverage."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.text import Text

from common import paths
from common.board import terminal
from common.errors import Kind
from common.grading.failing_condition import CHANCE, failing_condition
from common.ops._draw import facts_of
from common.printable import columns, printable, wrapped
from common.records.lines import kinds
from common.source import is_code
from common.spec import Case, Direction, Fact, Op
from common.verdicts import (
    BEFORE_LAUNCH,
    ENDED,
    RIGHT,
    SOME,
    WRONG,
    Autotuned,
    Picture,
    Verdict,
    text_of,
)

SHOWN = 2
"""The number of cases to show of each group of failures, the smallest cases first."""
REASONS = 3
"""The number of reasons to show for unsupported cases, the most common reasons first."""
_PLACE = re.compile(r"line (\d+) of ([^/\s:]+\.py)")
STYLES = {WRONG: "red", SOME: "yellow", RIGHT: "dim"}
MARGIN = 4 * " "
CUT = "…"
"""Stands for what a line of source lacks on a narrow terminal."""
TICKS = 8
"""The columns between two indices in a picture's heading."""
AFTER_LAUNCHES = (
    "wrong only after an autotuner has launched {} on the same arguments, as on a GPU: list what a "
    "launch adds to in reset_to_zero, what it overwrites in restore_value"
)
"""The line for failures that a tuner's launches cause."""
FEW = 0.1
"""The share of answered cases below which a line reports the coverage."""


@dataclass(frozen=True)
class Answer:
    """The verdicts of one solution on one case."""

    op: Op[Any]
    case: Case
    verdicts: Mapping[Direction, Verdict]

    @property
    def failures(self) -> Iterator[tuple[tuple[Direction, ...], Verdict]]:
        """Yield each distinct failure, with its directions."""
        by_failure: dict[tuple[str, str], list[Direction]] = defaultdict(list)
        for direction, verdict in self.verdicts.items():
            if not verdict.fine:
                by_failure[verdict.verdict, verdict.reason].append(direction)
        for directions in by_failure.values():
            yield tuple(directions), self.verdicts[directions[0]]

    @property
    def outcome(self) -> str:
        """The verdict, or the verdict of each direction if they differ."""
        names = {direction: verdict.verdict for direction, verdict in self.verdicts.items()}
        if len(set(names.values())) == 1:
            return next(iter(names.values()))
        return " and ".join(f"{direction} {name}" for direction, name in names.items())

    def has(self, name: str) -> bool:
        """Return whether the verdict of a direction is `name`."""
        return any(verdict.verdict == name for verdict in self.verdicts.values())

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
    failing: Sequence[Answer]
    everyone: Sequence[Answer]
    """All answers of the solution in the tier."""

    @property
    def by_size(self) -> list[Answer]:
        """The failing answers, in the order of the cases' bytes and FLOPs."""

        def size(answer: Answer) -> tuple[int, int]:
            work = answer.op.work(answer.case, "forward")
            return work.bytes, work.flops

        return sorted(self.failing, key=size)

    @property
    def smallest(self) -> list[Verdict]:
        """The smallest cases' failures with distinct groups, or distinct lines of source."""
        by_reason: dict[str, Verdict] = {}
        for answer in self.by_size:
            verdict = answer.verdicts[self.directions[0]]
            place = _PLACE.search(verdict.reason)
            by_reason.setdefault(place[0] if place else verdict.group or verdict.reason, verdict)
        return list(by_reason.values())[:SHOWN]

    @property
    def condition(self) -> str:
        """The property that separates the failures from the passes; "" without such a property."""
        failing, passed = ([self._facts(answer) for answer in answers if not answer.empty]
                           for answers in (self.failing, self._passing))  # fmt: skip
        return failing_condition(failing, passed)

    @property
    def after_launches(self) -> str:
        """The kernels if failures come only after launches by an autotuner; "" otherwise.

        As for `condition`, chance would give the same in fewer than one run of a thousand.
        """
        tuned = [self._tuned(answer) for answer in (*self.failing, *self._passing)]
        launched = [any(each.launches for each in kernels.values()) for kernels in tuned]
        fails, count = len(self.failing), sum(launched)
        chance = math.comb(count, fails) / math.comb(len(tuned), fails)
        if not all(launched[:fails]) or chance > CHANCE:
            return ""
        return " and ".join(dict.fromkeys(name for kernels in tuned[:fails] for name in kernels))

    @property
    def everywhere(self) -> str:
        """The number of failures in words if all cases with an element fail; "" otherwise."""
        fails, answered = len(self.failing), self._answered
        if fails == len(answered):
            return f"every case ({fails})"
        elements = sum(not answer.empty for answer in answered)
        if fails == elements and not any(answer.empty for answer in self.failing):
            return f"every case that has an element ({fails})"
        return ""

    @property
    def count(self) -> str:
        """The number of failures among the answered cases of this direction, in words."""
        return self.everywhere or f"{len(self.failing)} of {len(self._answered)} cases"

    @property
    def _answered(self) -> list[Answer]:
        return [
            answer for answer in self.everyone if self._verdict(answer) not in ("", "UNSUPPORTED")
        ]

    @property
    def _passing(self) -> list[Answer]:
        return [answer for answer in self.everyone if self._verdict(answer) == "PASSED"]

    def _verdict(self, answer: Answer) -> str:
        """Return the verdict in this direction; "" if the case does not have the direction."""
        verdict = answer.verdicts.get(self.directions[0])
        return verdict.verdict if verdict else ""

    def _facts(self, answer: Answer) -> dict[str, Fact]:
        """Return the case's properties, without the upstream gradient's layout if forward fails.

        The parameters of autotuned kernels are properties too, such as BLOCK, or `_kernel's BLOCK`
        if several kernels are tuned.
        """
        facts = facts_of(answer.op, answer.case)
        if "forward" in self.directions:
            facts.pop("upstream", None)
        tuned, several = self._tuned(answer), len(self._parameters) > 1
        for kernel, names in self._parameters.items():
            values = tuned[kernel].values if kernel in tuned else [{}]
            for name in names:
                texts = {str(value.get(name, "not launched")) for value in values}
                number = values[0].get(name, "")
                exact = len(texts) == 1 and not isinstance(number, str)
                fact = number if exact else " and ".join(sorted(texts))
                facts[f"{kernel}'s {name}" if several else name] = fact
        if self._parameters:
            launched = any(each.launches for each in tuned.values())
            facts["an autotuned kernel"] = "tried before the call" if launched else "launched once"
        return facts

    @cached_property
    def _parameters(self) -> dict[str, list[str]]:
        """The names of the parameters of each autotuned kernel, over all answers."""
        names: dict[str, dict[str, None]] = defaultdict(dict)
        for answer in self.everyone:
            for kernel, tuned in self._tuned(answer).items():
                names[kernel].update(dict.fromkeys(name for each in tuned.values for name in each))
        return {kernel: list(parameters) for kernel, parameters in names.items()}

    def _tuned(self, answer: Answer) -> Mapping[str, Autotuned]:
        verdict = answer.verdicts.get(self.directions[0])
        return verdict.configurations if verdict else {}


def coverage(verdicts: Iterable[Verdict]) -> tuple[set[str], list[str]]:
    """Return the solutions that answer no case, and a line on each solution with few answers.

    A failure in either direction is an answer too. A solution that needs a GPU, where there is
    none, may answer no case.
    """
    cases: dict[str, set[str]] = defaultdict(set)
    answered: dict[str, set[str]] = defaultdict(set)
    without_gpu: dict[str, set[str]] = defaultdict(set)
    for verdict in verdicts:
        cases[verdict.solution].add(verdict.case)
        if verdict.verdict != "UNSUPPORTED":
            answered[verdict.solution].add(verdict.case)
        elif verdict.kind is Kind.NO_GPU:
            without_gpu[verdict.solution].add(verdict.case)
    lines = []
    for solution, names in cases.items():
        count = len(answered[solution])
        if not count and without_gpu[solution]:
            needed = f"{len(without_gpu[solution])} of {_cases(len(names))} need a GPU"
            lines.append(f"{solution} is not judged: {needed}, and none is here")
        elif not count:
            lines.append(f"{solution} answers no case: it leaves all {len(names)} unsupported")
        elif count < FEW * len(names):
            lines.append(f"{solution} answers {count} of {len(names)} cases, fewer than a tenth")
    silent = {name for name in cases if not answered[name] and not without_gpu[name]}
    return silent, lines


def configurations(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Yield a line for each autotuned kernel, such as `_kernel: 5 of 8 configurations`."""
    taken: dict[str, set[str]] = defaultdict(set)
    counts: dict[str, int] = {}
    for verdict in verdicts:
        for kernel, tuned in verdict.configurations.items():
            taken[kernel].update(map(text_of, tuned.values))
            counts[kernel] = max(counts.get(kernel, 0), tuned.count, len(taken[kernel]))
    for kernel, count in counts.items():
        yield f"{printable(kernel)}: {len(taken[kernel])} of {count} configurations"


class TierReport:
    """Report the answers of one tier: a group's first failure at once, a summary at the end."""

    def __init__(self, tier: str, verbose: bool, picture: bool = False) -> None:
        """Start with no answer.

        Args:
            tier: The name of the tier.
            verbose: Whether to print every failure at once.
            picture: Whether to print a picture of the wrong elements after each printed failure.
        """
        self.tier, self._verbose, self._picture = tier, verbose, picture
        self._answers: dict[tuple[str, str], Answer] = {}
        """The answers by the names of solution and case."""
        self._kinds: set[tuple[str, tuple[Direction, ...], str]] = set()
        """The printed kinds of failures: solution, directions and verdict."""
        self._excerpts: set[tuple[str, ...]] = set()
        """The printed excerpts of the source; with verbose, none is left out."""

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
    def failures(self) -> dict[tuple[str, str], tuple[str, ...] | None]:
        """The names of solution and case of the failing answers, with `Verdict.after`."""
        failures = {}
        for key, answer in self._answers.items():
            after = [failure.after for _, failure in answer.failures]
            if after:
                known = [names for names in after if names is not None]
                failures[key] = max(known, key=bool, default=None)
        return failures

    def update(
        self, failed: Mapping[tuple[str, str], tuple[str, ...] | None]
    ) -> dict[tuple[str, str], tuple[str, ...] | None]:
        """Return earlier failures, with the answers of this report in place of their cases'."""
        left = {key: after for key, after in failed.items() if key not in self._answers}
        return left | self.failures

    @property
    def share(self) -> str:
        """The share of passing cases, and why the others are not supported; "" without a pass.

        For example `10 of 123 cases; 113 not supported: interleaved, does not take cp_size`, or
        `10 of 123 cases; 123 not supported or in part: ...` if some passing cases lack backward.
        The kinds of notes follow: `10 of 10 cases; but no kernel was launched (3 cases)`.
        """
        answers = list(self._answers.values())
        passed = sum(answer.has("PASSED") for answer in answers)
        lacking = [answer for answer in answers if answer.has("UNSUPPORTED")]
        share = f"{passed} of {len(answers)} cases" if passed else ""
        noted = ", ".join(f"{kind} ({_cases(n)})" for kind, n in _notes(answers).most_common())
        but = f"; but {noted}" if noted else ""
        if not (passed and lacking):
            return share + but
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
        return f"{share}; {len(lacking)} not supported{partly}: {', '.join(shown + more)}{but}"

    def _verdicts(self) -> Iterator[Verdict]:
        for answer in self._answers.values():
            yield from answer.verdicts.values()

    def groups(self) -> list[Group]:
        """Return the failures by solution, directions and verdict."""
        failing: dict[tuple[str, tuple[Direction, ...], str], list[Answer]] = defaultdict(list)
        everyone: dict[str, list[Answer]] = defaultdict(list)
        for (solution, _), answer in self._answers.items():
            everyone[solution].append(answer)
            for directions, failure in answer.failures:
                failing[solution, directions, failure.verdict].append(answer)
        return [Group(*key, answers, everyone[key[0]]) for key, answers in failing.items()]

    def unexplained(
        self, explained: Collection[tuple[str, Direction]]
    ) -> Iterator[tuple[Group, Case]]:
        """Yield each group without a known property and cause, with the group's smallest case.

        A group of all cases and one that depends on earlier calls are left out, since no property
        of a case decides whether they fail.

        Args:
            explained: The solutions and directions with a known cause.
        """
        for group in self.groups():
            known = any((group.solution, direction) in explained for direction in group.directions)
            ended = group.verdict in ENDED | BEFORE_LAUNCH
            known |= group.smallest[0].after is not None
            if not (known or ended or group.everywhere or group.condition):
                yield group, group.by_size[0].case

    def add(self, op: Op[Any], case: Case, directions: Sequence[Verdict]) -> None:
        """Add the verdicts of one solution and case, one for each direction.

        They replace earlier verdicts of the same solution and case.
        """
        name = directions[0].solution
        answer = Answer(op, case, {verdict.direction: verdict for verdict in directions})
        earlier = self._answers.pop((name, case.name), None)
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
        self._answers[name, case.name] = answer

    def end(self) -> None:
        """Print a summary of each group, the number of cases by verdict, and unsupported cases."""
        groups, verdicts = self.groups(), list(self._verdicts())
        for group in groups:
            self._summarize(group)
        for solution in dict.fromkeys(verdict.solution for verdict in verdicts):
            answers = [answer for (name, _), answer in self._answers.items() if name == solution]
            outcomes = [answer.outcome for answer in answers]
            counted = ", ".join(f"{n} {name}" for name, n in Counter(outcomes).most_common())
            hidden = any(
                len(group.failing) > len(group.smallest)
                for group in groups
                if group.solution == solution
            )
            more = " (--verbose shows each)" if hidden and not self._verbose else ""
            print(wrapped(f"{solution}, {self.tier}: {counted} of {_cases(len(outcomes))}{more}"))
            for line in configurations(each for each in verdicts if each.solution == solution):
                print(wrapped(line, MARGIN))
            unsupported = dict.fromkeys(
                (verdict.case, verdict.reason)
                for verdict in verdicts
                if verdict.solution == solution and verdict.verdict == "UNSUPPORTED"
            )
            for reason, n in Counter(reason for _, reason in unsupported).most_common():
                print(wrapped(f"unsupported: {printable(reason)} ({_cases(n)})", MARGIN))
            for kind, n in _notes(answers).most_common():
                print(wrapped(f"note: {kind} ({_cases(n)})", MARGIN))
        for line in coverage(verdicts)[1]:
            print(line)

    def _summarize(self, group: Group) -> None:
        """Print a group's condition and smallest cases, unless all of it is already printed."""
        condition, failures = group.condition, group.smallest
        if kernels := group.after_launches:
            words = f"{group.solution} {' and '.join(group.directions)}: {AFTER_LAUNCHES}"
            print(wrapped(printable(words.format(kernels))))
        if not condition and len(failures) == 1:
            return
        directions = " and ".join(group.directions)
        print(wrapped(f"{group.solution} {directions}: {group.verdict} in {group.count}"))
        if condition:
            print(wrapped(condition, MARGIN))
        for verdict in () if self._verbose else failures:
            self._show(f"{verdict.case}: {verdict.reason}", verdict)

    def _show(self, line: str, failure: Verdict) -> None:
        """Print a failure's line, and its source the first time; with `picture`, its picture."""
        folder = paths.CONTRIBUTORS / failure.solution.partition("/")[0]
        plan = [f"asked {step}" for step in failure.plan.splitlines()] if self._verbose else []
        print(wrapped(printable(line), MARGIN), flush=True)
        tuned = [f"launched: {failure.tuned}"] if failure.tuned else []
        source = (failure.solution, *excerpt(failure.reason, folder))
        new = self._verbose or source not in self._excerpts
        self._excerpts.add(source)
        for text in (*(source[1:] if new else ()), *tuned, *plan):
            print(f"{MARGIN}{printable(text)}", flush=True)
        if self._picture and failure.picture:
            console = terminal.console()
            # captured, since the console would overwrite the progress bar, unlike `print`
            with console.capture() as captured:
                console.print(drawn(failure.picture), soft_wrap=True)
            print(captured.get(), end="", flush=True)


def _cases(count: int) -> str:
    return f"{count} case{'s' * (count > 1)}"


def _notes(answers: Iterable[Answer]) -> Counter[str]:
    """Return the number of answers with each kind of note."""
    return Counter(
        kind
        for answer in answers
        for kind in kinds(note for verdict in answer.verdicts.values() for note in verdict.notes)
    )


# --- places in the source -------------------------------------------------------------------------


def excerpt(reason: str, folder: Path) -> Iterator[str]:
    """Yield the lines of source to which a reason refers, in the folder's files.

    For `ValueError: ..., line 31 of rope.py: tl.arange(0, d)`, yield

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
        expression = _common(reason[match.end() :].removeprefix(": "), line)
        room = columns() - len(f"{MARGIN}{number} | ") if columns() else len(line)
        line, carets = _cut(line, expression, max(room, len(CUT) + 1))
        yield f"{name}:{number}"
        yield f"{number} | {line}"
        if carets:
            yield f"{' ' * len(number)} | {carets}"


def _cut(line: str, expression: str, room: int) -> tuple[str, str]:
    """Return the line, cut to `room` columns around an expression, and carets below it.

    For example, with 12 columns and the expression `load(x)`, `    y = tl.load(x) + 1` becomes
    `…tl.load(x)…`.
    """
    start = line.index(expression)
    if len(line) > room:
        first = min(start - len(CUT), start + len(expression) + len(CUT) - room)
        if first > 0:
            line, start = CUT + line[first + len(CUT) :], start - first
        if len(line) > room:
            line = line[: room - len(CUT)] + CUT
    return line, (" " * start + "^" * len(expression))[: len(line)] if expression else ""


def _common(text: str, line: str) -> str:
    """Return the expression at the start of the text.

    The expression is the longest prefix of the text that the line contains. If the prefix is not
    code, the line has changed since; return "".
    """
    lengths = range(len(text), 0, -1)
    longest = next((text[:n].strip() for n in lengths if text[:n].strip() in line), "")
    return longest if is_code(longest) else ""


# --- pictures -------------------------------------------------------------------------------------


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
    return drawing.append(f"{indent}{_legend(picture)}")


def _legend(picture: Picture) -> str:
    """Return the legend of the marks and of a cell."""
    marks = "".join(picture.cells)
    named = ((WRONG, "wrong"), (SOME, "wrong in part"), (RIGHT, "right"))
    meaning = "  ".join(f"{mark} {words}" for mark, words in named if mark in marks)
    height, width = picture.block
    cell = f"{height} x {width} elements" if picture.block != (1, 1) else ""
    others = f"every {' and '.join(picture.others)}" if picture.others else ""
    holds = " of ".join(filter(None, (cell, others)))
    return meaning + f"; a cell: {holds}" * bool(holds)
