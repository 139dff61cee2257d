"""The line by which `check` names a kernel's mistake, for the table of docs/mistakes.md."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from common.commands.report import TierReport
from common.grading.diagnosis import Diagnosis, contrast
from common.grading.fork_server import ForkServer
from common.grading.sweep import Graded, Sweep
from common.paths import ROOT
from common.solutions import Solution

NOTHING = "nothing"
PASSES = "passes"
"""Neither a name nor the want of one: the mistake shows on a GPU alone."""
PLACES = (
    r"program \(.*line \d+ of \S+\.py",  # and the element that it accesses, or two that conflict
    r"(?<!stored at )line \d+ of \S+\.py",  # where a wrong value is stored is often right
    r"\b\w+ changed$",  # the argument
    r"holds fresh memory: (?!every element)|nothing is written there",
)
CALLS = (
    r"torch\.(no_grad|inference_mode)\(\)",
    r"where only [\w, ]+ takes? a gradient",
    r"of a call on other inputs",
    r"of a call in \w+ on the same",
    r"of one call changed when the next was made",
)
RESULTS = (
    r"has shape \[.*expected \[|invalid gradient at index",
    r"is \w+, expected \w+",
    r"the gradient of \w+ is None, not even zeros$",
    r"has another signature|lacks a function",
    r"twice as much the second time|by the last bit alone",
)
KINDS = {"place": PLACES, "call": CALLS, "result": RESULTS}
"""What a verdict's own reason may name, by the words that name it."""


class Line(NamedTuple):
    """What a line names, a key of the page's list, and the line."""

    names: str
    text: str


def lines(
    kept: Sequence[Graded], causes: Mapping[str, Sequence[Diagnosis]], server: ForkServer
) -> dict[str, Line]:
    """Return the line on each solution, by name; `kept` are smoke cases graded with `keep=True`."""
    report = TierReport(verbose=False)
    for graded in kept:
        report.add(graded.problem.op, graded.case, list(graded.verdicts.values()))
    by_names = {(graded.solution.name, graded.case.name): graded for graded in kept}
    told = [cause for several in causes.values() for cause in several]
    with Sweep(server.device, server=server) as sweep:
        summaries = report.summaries(
            "smoke", server.device, told, lambda names: contrast(sweep, by_names[names])
        )
    lines = {}
    for solution in {graded.solution for graded in kept}:
        mistakes = [", or: ".join(cause.mistakes) for cause in causes[solution.name]]
        changes = [group.property for each in summaries if each.solution == solution.name
                   for group in each.failures if " passes with " in group.property]  # fmt: skip
        lines[solution.name] = _line(solution, report, mistakes, changes)
    return lines


def _line(
    solution: Solution, report: TierReport, causes: Sequence[str], changes: Sequence[str]
) -> Line:
    """Return the first that there is: a cause, a field, what a reason names, every case."""
    groups = [group for group in report.groups() if group.solution == solution.name]
    whens = [group.condition for group in groups if group.condition]
    reasons = [answer.verdicts[group.directions[0]].reason
               for group in groups for answer in group.failing]  # fmt: skip
    if not groups:
        return Line(PASSES, "")
    if causes:
        return Line("cause", f"likely cause: {causes[0]}")
    if whens or changes:
        return Line("field", [*whens, *changes][0])
    for kind, patterns in KINDS.items():
        for reason in reasons:
            if any(re.search(pattern, reason) for pattern in patterns):
                return Line(kind, reason)
    if "Fails: in every case" in solution.path.read_text() and groups[0].everywhere:
        return Line("every case", f"{groups[0].verdict} in every case: {reasons[-1]}")
    return Line(NOTHING, reasons[0])


# --- the page -------------------------------------------------------------------------------------

LONGEST = 150


def table(corpus: Iterable[Solution], found: dict[str, Line]) -> str:
    """Return the table of docs/mistakes.md."""
    rows = ["| kernel | what it does | names | what `check` says |", "|---|---|---|---|"]
    for solution in corpus:
        line = found[solution.name]
        rows.append(f"{_start(solution)} {line.names} | {_shown(line.text)} |")
    return "\n".join(rows)


def _start(solution: Solution) -> str:
    """Return the cells that do not depend on what was drawn."""
    name = f"[{solution.handle}](../{solution.path.relative_to(ROOT)})"
    return f"| {name} | {solution.note or 'a syntax error'} |"


def _shown(text: str) -> str:
    """Return a line without its counts and addresses, which are others each time."""
    text = re.sub(r" \(\d+ of \d+\)", "", text)
    text = re.sub(r"\d{9,}", "…", text).replace("|", r"\|").replace("<", "&lt;")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def missing(corpus: Iterable[Solution], text: str) -> list[str]:
    """Return the kernels without a row of their own in the page's text."""
    return [solution.handle for solution in corpus if _start(solution) not in text]
