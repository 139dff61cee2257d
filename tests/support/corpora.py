"""The kernels that must be caught, graded as `bench` grades; used by the tests of both corpora.

A kernel's docstring promises its verdicts, `Expected: forward=X backward=Y`: in each direction at
least one smoke case gets that verdict, and every other is PASSED or UNSUPPORTED. A cheat may also
promise its verdict when it is timed, `Timed: X`, and those that it gets on a GPU only,
`On a GPU: X` and `Timed on a GPU: X`. `Cause: NAME` names the mistake that `check` tells, and
`Fails: in every case` says that no field separates what fails; see tests/corpus/test_wrong.py.
"""

import dataclasses
import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from common import ops, solutions
from common.grading.fork_server import ForkServer
from common.grading.sweep import Graded, Sweep, eager_of
from common.measure import baseline, timing
from common.measure.baseline import Baseline
from common.paths import CONTRIBUTORS, ROOT
from common.solutions import Solution
from common.spec import DIRECTIONS, Case, Op
from common.verdicts import FINE

_EVERYONE = solutions.discover(CONTRIBUTORS)
BYSTANDERS = [
    *solutions.select(_EVERYONE, only="house"),
    *solutions.select(_EVERYONE, only="wenhaoli_xmu/masked_linear"),
]
WRONG, CHEATS, HONEST = (
    solutions.discover(ROOT / "tests" / "corpus" / name) for name in ("wrong", "cheats", "honest")
)
DEADLINE = 10.0
WITNESSED = 4
FEWEST = 10
"""Cases of an op in a sample, at least."""
SMALL = {"rotate_half": "10x2x4x8-float32", "masked_linear": "70x40x24-float32-span"}
SHORT = 0.05
"""The share of a clock's seconds where the verdict matters and the time does not."""
LARGE = {"rotate_half": "8192x2x32x128-bfloat16"}
"""Cases that are timed: small ones, and one that is no small work for any device."""
Counts = dict[tuple[Solution, str], Counter]


def expected(solution: Solution) -> dict[str, str]:
    """Return the promised verdicts by direction; read as text, since one kernel is no Python."""
    match = re.search(r"Expected: forward=(\w+) backward=(\w+)", solution.path.read_text())
    assert match, f"{solution.name} promises no verdict"
    return dict(zip(DIRECTIONS, match.groups(), strict=True))


def promised(solution: Solution, where: str) -> str | None:
    match = re.search(rf"^{where}: (.+)$", solution.path.read_text(), re.MULTILINE)
    return match and match[1]


CAUGHT = {each for each in (*WRONG, *CHEATS) if not FINE.issuperset(expected(each).values())}
TIMED = [cheat for cheat in CHEATS if promised(cheat, "Timed")]
BESIDE_CHEATS = [each for each in BYSTANDERS if each.op in {cheat.op for cheat in CHEATS}]
"""Honest solutions of the cheats' ops, graded and timed beside them."""


def smoke(op: Op[Any]) -> Iterable[Case]:
    """Return the smoke cases, first those that show most: views, slices apart, then float16."""

    def order(case: Case) -> tuple[bool, ...]:
        # last those whose views take gigabytes: on a GPU they take seconds each, one by one
        view = {"layout", "weights"} & case.params.keys()
        return (bool(case.far_bytes), not view, case.values != "apart", case.dtype != "float16")

    return sorted(op.cases("smoke"), key=order)


def shown(case: Case) -> set[tuple[str, str]]:
    """Return what a case shows: its dtype, each option with its value, and whether it is empty."""
    fields = dataclasses.fields(case)
    sizes = {field.name for field in fields if field.default is dataclasses.MISSING}
    options = {name: value for name, value in case.params.items() if name not in sizes}
    values = {(name, "" if isinstance(v, list) else str(v)) for name, v in options.items()}
    return values | {("empty", str(0 in case.shape))}


def sample(op: Op[Any], seed: int) -> list[Case]:
    """Return FEWEST smoke cases or more, which together show all that the smoke cases show."""
    cases = list(op.cases("smoke"))
    random.Random(seed).shuffle(cases)
    chosen, seen = [], set()
    for case in cases:
        if not shown(case) <= seen:
            chosen.append(case)
            seen |= shown(case)
    others = [case for case in cases if case not in chosen]
    return chosen + others[: max(FEWEST - len(chosen), 0)]


def large(op: Op[Any]) -> Iterable[Case]:
    """Return one case of the board, with more programs than a GPU runs at once."""
    return itertools.islice((case for case in op.cases("board") if case.ranked_by == "gpu"), 1)


def is_caught(solution: Solution, counts: Counts) -> bool:
    """Return whether each direction has got the verdict that the kernel promises."""
    return all(counts[solution, where][verdict] for where, verdict in expected(solution).items())


def count(graded: Iterable[Graded], counted: Counts) -> Counts:
    """Count verdicts by solution and direction; a kernel that was caught is done."""
    for each in graded:
        if each.solution not in CAUGHT or not is_caught(each.solution, counted):
            for direction, verdict in each.verdicts.items():
                counted[each.solution, direction][verdict.verdict] += 1
    return counted


def verdicts(sweep: Sweep, corpus: Collection[Solution], others: Iterable[Solution]) -> Counts:
    """Count the verdicts by solution and direction on the ops' smoke cases, all graded in one run.

    A kernel that was caught is asked no more. The others, whose verdicts it must not change, are
    graded beside it on WITNESSED cases; test_solutions.py grades the bystanders on every case.
    """
    counted: Counts = defaultdict(Counter)

    def skip(solution: Solution, case: object) -> bool:
        if solution in CAUGHT:
            return is_caught(solution, counted)
        return sum(counted[solution, "forward"].values()) >= WITNESSED

    everyone = [*corpus, *others]
    for name in sorted({solution.op for solution in everyone}):
        op = ops.load(name)
        count(sweep.grade(op, smoke(op), everyone, skip), counted)
    return counted


def timed(
    device: str,
    several: Collection[Solution],
    names: dict[str, str] = SMALL,
    server: ForkServer | None = None,
    time_scale: float = 1.0,
) -> dict[Solution, str]:
    """Return each solution's verdict when it is timed as bench does, whatever it was graded."""
    found = {}
    for op in map(ops.load, sorted(names.keys() & {solution.op for solution in several})):
        with Sweep(device, overlap=False, server=server) as sweep:
            beside = baseline_of(sweep, op)
            for graded in sweep.grade(op, small(op, names), several):
                times = timing.time_case(graded, beside, "forward", sweep.supervisor, time_scale)
                found[graded.solution] = times.get("verdict", "PASSED")
    return found


def baseline_of(sweep: Sweep, op: Op[Any]) -> Baseline:
    """Return eager's process; no solution may have run in the sweep yet."""
    worker = sweep.supervisor.baseline(eager_of(op))
    return Baseline(worker, baseline.calibrate(worker, sweep.device))


def small(op: Op[Any], names: dict[str, str] = SMALL) -> list[Case]:
    both = (*op.cases("board"), *op.cases("smoke"))
    return [next(case for case in both if case.name == names[op.name])]


def wrongly_judged(solution: Solution, counts: Counts) -> list[str]:
    """Return a line for each direction in which a kernel got another verdict than it promises."""
    lines = []
    for direction, verdict in expected(solution).items():
        got = counts[solution, direction]
        if set(got) - FINE != {verdict} - FINE or not got:
            lines.append(f"{direction}: {dict(got)} instead of {verdict}")
    return lines


def harmed(solution: Solution, counts: Counts) -> list[str]:
    """Return a line for each direction in which a bystander failed or passed no case.

    A solution for inference promises `backward=UNSUPPORTED`, and passes forward alone.
    """
    inference = "backward=UNSUPPORTED" in solution.path.read_text()
    wanted = {"forward": "PASSED", "backward": "UNSUPPORTED" if inference else "PASSED"}
    return [
        f"{direction}: {dict(counts[solution, direction])}"
        for direction in DIRECTIONS
        if not {wanted[direction]} <= set(counts[solution, direction]) <= FINE
    ]


def table(corpus: Iterable[Solution], counts: Counts) -> str:
    """Return the table of a corpus and its verdicts, as docs/corpora.md shows it."""
    lines = ["| kernel | what it does | forward | backward |", "|---|---|---|---|"]
    for solution in corpus:
        failed = [set(counts[solution, direction]) - FINE for direction in DIRECTIONS]
        fine = [
            "PASSED" if counts[solution, direction]["PASSED"] else "UNSUPPORTED"
            for direction in DIRECTIONS
        ]
        forward, backward = (
            " ".join(sorted(one)) or two for one, two in zip(failed, fine, strict=True)
        )
        if (there := promised(solution, "On a GPU")) and there not in forward:
            if failed[1] and not failed[0]:
                backward += f", on a GPU: {there}"
            else:
                forward += f", on a GPU: {there}"
        name = f"[{solution.handle}](../{solution.path.relative_to(ROOT)})"
        what = solution.note or "a syntax error"
        for when in ("Timed", "Timed on a GPU"):
            timed = promised(solution, when)
            forward += f", {when.lower().replace('gpu', 'GPU')}: {timed}" if timed else ""
        lines.append(f"| {name} | {what} | {forward} | {backward} |")
    return "\n".join(lines)


def in_the_docs(name: str, text: str, write: bool, page: str = "corpora") -> bool:
    """Return whether a page of docs/ holds this table; with `write`, write it there."""
    path = ROOT / "docs" / f"{page}.md"
    before, start, rest = path.read_text().partition(f"<!-- {name} -->\n")
    held, end, after = rest.partition(f"<!-- /{name} -->")
    if write:
        path.write_text(f"{before}{start}{text}\n{end}{after}")
    return write or held == f"{text}\n"
