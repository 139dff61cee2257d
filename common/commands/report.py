"""Print what a check finds: the first failure of a kind at once, and a few lines at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from common import ops, paths, source
from common.board import terminal
from common.commands.answers import Answers, CaseAnswer, Names
from common.commands.progress import Progress
from common.commands.result import Anything, FailingCases, Judged, Summary
from common.disk_cache import DiskCache
from common.engines.counting import counts
from common.errors import NOTES
from common.measure import machine
from common.printable import columns, plural, printable, say, translated, wrapped
from common.records import runs
from common.records.lines import Record
from common.solutions import Solution
from common.source import Place
from common.spec import Case, Op
from common.verdicts import Verdict

MEASURED = "nvidia-h200"
"""The folder of results in which the model's places are."""
MARGIN, INDENT = 4 * " ", 2 * " "
ROOM = 10
"""The most lines of the end of a check."""
WRONG = "INCORRECT_NUMERICAL"
OF_VALUES = {"OUT_OF_BOUNDS", "UNWRITTEN_OUTPUT", WRONG, "NONDETERMINISTIC"}
"""The verdicts whose reasons name elements, which differ in each case."""
REASONS = 3
"""The number of reasons to show for unsupported cases, the most common reasons first."""


class TierReport(Answers):
    """The answers of one tier, of which the first failures are printed at once."""

    def __init__(self, verbose: bool, watched: bool = False) -> None:
        """Print every failure if `verbose`; if `watched`, the first answer too, even a pass."""
        super().__init__()
        self._verbose, self._watched = verbose, watched
        self._printed: set[tuple[object, ...]] = set()
        """The printed failures: a solution with a verdict, or with a place in its source."""

    def add(self, op: Op[Any], case: Case, directions: Sequence[Verdict]) -> None:
        """Add the verdicts of one solution and case, one for each direction.

        They replace earlier verdicts of the same solution and case.
        """
        name = directions[0].solution
        answer = CaseAnswer(op, case, {verdict.direction: verdict for verdict in directions})
        if self._watched and not self.by_name and not answer.failures:
            names = " and ".join(dict.fromkeys(verdict.verdict for verdict in directions))
            say(f"{name} {case.name}: {names}", hang=MARGIN, green="PASSED")
        earlier = self.by_name.pop((name, case.name), None)
        for verdict in directions:
            for note in filter(lambda note: note.found, verdict.notes if self._verbose else ()):
                print(printable(f"{name} {verdict.case} {verdict.direction}, a note: {note}"))
        for failing, failure in answer.failures:
            if self._is_new(failure):
                before = earlier and earlier.verdicts[failing[0]].verdict
                interpreted = f", {before} in the interpreter" if before else ""
                where = f"{name} {failure.case} {' and '.join(failing)}"
                line = f"{where}: {failure.verdict}{interpreted}"
                say(line, hang=MARGIN, red=failure.verdict)
                self._show(failure)
        self.by_name[name, case.name] = answer

    def _is_new(self, failure: Verdict) -> bool:
        """Return whether to print a failure: its place is new or, of wrong values, its verdict."""
        kind, placed = (failure.solution, failure.verdict), failure.verdict != WRONG
        place = (failure.solution, *failure.places[0][:2]) if failure.places and placed else kind
        new = self._verbose or place not in self._printed
        self._printed |= {kind, place}
        return new

    def _show(self, failure: Verdict) -> None:
        """Print a failure's reason and its source."""
        folder = paths.CONTRIBUTORS / failure.solution.partition("/")[0]
        room = columns() - len(MARGIN) if columns() else None
        excerpt = list(source.excerpt(failure.places, folder, room))
        one = failure.places[0] if excerpt and len(failure.places) == 1 else None
        say(_without(one, failure.reason), MARGIN)
        tuned = [f"launched: {failure.tuned}"] if failure.tuned else []
        for text in (*excerpt, *tuned):
            print(f"{MARGIN}{printable(text)}", flush=True)


def _without(place: Place | None, reason: str) -> str:
    """Return the reason without the place, which is shown after it."""
    return reason.replace(f", {place}", "").replace(f" {place}", "") if place else reason


# --- the end --------------------------------------------------------------------------------------


class EndLine(NamedTuple):
    """A line of a check's end."""

    importance: int
    """0 for the most important; where room is short, lines of large numbers are left out."""
    text: str
    margin: str | None = ""
    """None for a line that ends with a command, which is not broken."""
    styles: Mapping[str, str] = MappingProxyType({})
    cases: int = 0
    """The failing cases that this line alone tells of."""

    def translated(self) -> EndLine:
        """Return the line in the language of the terminal."""
        styles = {style: translated(part) for style, part in self.styles.items()}
        return self._replace(text=translated(self.text), styles=styles)

    @property
    def height(self) -> int:
        """The number of lines on the terminal."""
        if self.margin is None:
            return 1 + len(self.text) // (columns() or terminal.PIPE_WIDTH)
        return 1 + wrapped(self.text, self.margin, MARGIN).count("\n")

    def show(self) -> None:
        """Print the line."""
        if self.margin is None:
            print(self.text, flush=True)
        else:
            say(self.text, self.margin, MARGIN, **self.styles)


def end(summaries: Iterable[Summary], further: Iterable[str] = ()) -> None:
    """Print the outcome of each solution and further lines, ROOM lines in all at most."""
    tiers: dict[str, list[Summary]] = defaultdict(list)
    for summary in summaries:
        tiers[summary.solution].append(summary)
    lines = [line for each in tiers.values() for line in _outcome(each)]
    beside = list(further)
    lines += [EndLine(2, text) for text in beside[:-1]] + [EndLine(1, text) for text in beside[-1:]]
    lines = [line.translated() for line in lines]
    too_long = sum(line.height for line in lines) > ROOM
    room, shown = ROOM - too_long, set[int]()
    for number in sorted(range(len(lines)), key=lambda number: lines[number].importance):
        if lines[number].height <= room:
            room -= lines[number].height
            shown.add(number)
    if cut := [n for n, line in enumerate(lines) if line.cases and n not in shown]:
        others = plural(sum(lines[number].cases for number in cut))
        lines[cut[0]] = EndLine(0, f"and {others} of other kinds", INDENT).translated()
        shown.add(cut[0])
    for number in sorted(shown):
        lines[number].show()


def _outcome(tiers: Sequence[Summary]) -> Iterator[EndLine]:
    """Yield the lines on one solution's outcome in one tier, or in both."""
    failing = [summary for summary in tiers if summary.failures]
    yield from _failures(failing[0]) if failing else _passes(tiers)
    for kernel, taken in tiers[0].configurations.items():
        yield EndLine(ROOM, f"{kernel}: {taken} configurations", INDENT)


def _failures(summary: Summary) -> Iterator[EndLine]:
    """Yield how many cases fail, where, why, and how to repeat one."""
    solution, (first, *_) = summary.solution, summary.failures
    share = _share(summary.failed, summary.passed, summary)
    words = f"{solution}: FAILED in {share}{_others(summary)}"
    yield EndLine(0, words, styles={"red": "FAILED"})
    told = {""}
    for number, group in enumerate(summary.failures):
        stored = "stored at " * (group.verdict == WRONG)
        place = f"{stored}{group.place.file}:{group.place.line}" if group.place else ""
        above = f"{group.again} of them above" if group.again else ""
        text = f"{group.verdict} {' and '.join(group.directions)}, {plural(group.failed)}"
        what = ", ".join(filter(None, (text, above, place)))
        line = _cut(": ".join(filter(None, (what, _why(group)))))
        styles = {"red": group.verdict, "bold": place}
        alone = group.failed - group.again
        if shown := bool(alone) or group.property not in told:
            yield EndLine(1 + number, line, INDENT, styles, alone)
        if group.cause not in told:
            of = "" if shown else f", {' and '.join(group.directions)}"
            cause = f"likely cause{of}: {group.cause}"
            yield EndLine(1, cause, INDENT, {"bold": cause})
        told |= {group.property, group.cause}
    option = "--last-failed" if first.earlier else f"--case {first.case}"
    yield EndLine(0, f"Repeat: nox -s check -- {solution} {option}", None)


def _cut(text: str) -> str:
    """Return the text, cut to about a third of ROOM."""
    most = ROOM // 3 * ((columns() or terminal.PIPE_WIDTH) - 2 * len(MARGIN))
    return text if len(text) <= most else text[: most - 1] + "…"


def _why(group: FailingCases) -> str:
    """Return what the failures share, or the reason if it is no matter of values or known."""
    reason = _without(group.place, group.reason).removesuffix(", stored at")
    if group.verdict not in OF_VALUES:
        return "; ".join(filter(None, [reason, group.property]))
    return group.property or reason * (not group.cause)


def _passes(tiers: Sequence[Summary]) -> Iterator[EndLine]:
    """Yield how many cases pass, and what is not supported or to be noted."""
    solution, smoke = tiers[0].solution, tiers[0]
    if any(summary.passed for summary in tiers):
        shares = " and ".join(_share(each.passed, each.unsupported, each) for each in tiers)
        forward = smoke.forward_alone
        alone = f", {forward} of them forward alone" if forward else ""
        words = f"{solution}: PASSED in {shares}{alone}{_others(smoke)}"
        yield EndLine(0, words, styles={"green": "PASSED"})
    if smoke.remark:
        yield EndLine(0, f"{solution} {smoke.remark}", styles={"red": smoke.remark})
    reasons, notes, tried = Counter[str](), Counter[str](), Counter[str]()
    for summary in tiers:
        reasons.update(summary.reasons)
        notes.update(summary.notes)
        tried.update(summary.tried)
    if shown := [f"{why} ({count})" for why, count in reasons.most_common(REASONS)]:
        more = ["..."] * (len(reasons) > REASONS)
        yield EndLine(1, f"not supported: {', '.join(shown + more)}", INDENT)
    for kind, count in notes.most_common():
        of = f"in {count} of the {tried[kind]} cases tried" if kind in tried else plural(count)
        mend = "; the mend is in CONTRIBUTING.md" * (kind == "OTHER_SECOND_DERIVATIVES")
        yield EndLine(2, f"note: {NOTES[kind]} ({of}{mend})", INDENT)


def _share(count: int, others: int, summary: Summary) -> str:
    """Return, for example, `3 of 67 cases`, or `3 of 23 board cases` with 20 others."""
    return f"{count} of {plural(count + others, 'board ' * (summary.tier == 'board') + 'case')}"


def _others(summary: Summary) -> str:
    """Return how many cases are not among those that fail or pass."""
    lacks, rest = summary.unsupported, summary.left_out
    words = f"; {lacks} not supported" if lacks else ""
    return words + (f"; {plural(rest)} not run" if rest else "")


# --- a whole check --------------------------------------------------------------------------------


@dataclass
class CheckResult:
    """The findings of one check."""

    handle: str
    device: str
    cases: Set[Names]
    """The cases of `--case` or `--last-failed`; empty for all."""
    smoke: Answers
    board: Answers
    named_ops: set[str] = field(default_factory=set)
    """The ops of a case of `--case` that is no smoke case: it is measured beside the peers."""
    summaries: list[Summary] = field(default_factory=list)
    """The outcomes of the smoke cases, and of the board's cases if they were measured."""
    rows: list[Record] = field(default_factory=list)
    """The rows of the board's cases; none after a failed smoke case."""

    @property
    def answers(self) -> bool:
        """Whether the smoke cases have passes and no failure."""
        return not self.smoke.failed and self.smoke.passes

    def objects(self) -> Iterator[Anything]:
        """Yield the outcomes, the failures and the rows for `--json`."""
        yield from self.summaries
        for verdict in (*self.smoke.verdicts, *self.board.verdicts):
            if not verdict.fine:
                yield Judged.of(verdict)
        yield from self.rows

    @property
    def failed(self) -> bool:
        """Whether the exit code is 1."""
        if self.cases:
            return bool(self.smoke.failures or self.board.failures)
        if not self.answers:  # in no case, which is no failure if the folder needs a GPU
            return self.smoke.failed
        return not self.rows or self.board.failed


def show(result: CheckResult, solutions: Iterable[Solution]) -> None:
    """Print the folder's places on the device's board, the outcomes, and the next step."""
    further: list[str] = []
    if result.answers and not result.cases:
        if not result.rows:
            further = ["No case of the board fits this device: nothing was measured."]
        elif not result.board.failed:
            further = list(terminal.conclusion(result.rows))
            if result.device == "cpu":
                graded = {row.solution for row in result.rows}
                ours = [each for each in solutions if each.name in graded]
                further = [*modelled_places(result.handle, ours), *further]
        if result.device == "cuda":
            earlier = runs.read(paths.RESULTS / machine.results_folder(result.device))
            terminal.show_places(earlier, result.rows, result.handle)
    end(result.summaries, further)


def modelled_places(handle: str, solutions: Iterable[Solution]) -> Iterator[str]:
    """Yield what a model gives for each solution's counted work, beside the last other result."""
    cache, measured = DiskCache("modelled", handle, str), runs.read(paths.RESULTS / MEASURED)
    with Progress("counting the work at full shapes", transient=True):
        for solution in solutions:
            work, rows = list(counts([solution])), measured.of_board(ops.load(solution.op))
            if words := terminal.modelled_place(work, rows):
                latest, before = cache.found.get(solution.name, ("", ""))
                before = before if latest == words else latest
                cache.found[solution.name] = words, before
                line = terminal.PLACE.format(solution.name, words)
                yield line + f"; before: {before}" * bool(before)
    cache.save()
