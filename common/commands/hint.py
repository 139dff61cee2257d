"""`study check HANDLE --hint`: the exercises of the path that are done, and a hint for the next.

The path is data, `common/exercises.toml`. What a folder has done is found anew from its files: by
the verdicts of smoke cases, and by the counted work of the board's cases, which needs no GPU.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from common import paths
from common.board import modelled
from common.commands import options as shared
from common.commands import smoke
from common.errors import UserError
from common.kept import Kept
from common.printable import wrapped
from common.records.lines import Counted, Launch
from common.solutions import Solution

if TYPE_CHECKING:
    from common.grading.compiling import Compiler
    from common.grading.fork_server import ForkServer
    from common.spec import Case, Op


class Exercise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One step of the path."""

    op: str
    title: str
    task: str
    answers: dict[str, Any]
    """The facts of the smoke cases that must pass; none: of all."""
    where: dict[str, Any] = {}
    """The facts of the board's cases that are measured."""
    measure: str = ""
    """One of MEASURES, or none."""
    most: float = 0.0
    """The largest measure of an exercise that is done."""
    hints: tuple[str, ...]


def path(op: str | None = None) -> tuple[Exercise, ...]:
    """Return the exercises in order; with `op` those of this op."""
    text = (paths.COMMON / "exercises.toml").read_text(encoding="utf-8")
    every = msgspec.convert(tomllib.loads(text)["exercise"], tuple[Exercise, ...])
    return tuple(each for each in every if op in (None, each.op))


def run(options: argparse.Namespace) -> int:
    """Print the place of the folder named by `options.only` on the path; return 0.

    Raises:
        UserError: There is no such folder, or the op has no exercise.
    """
    handle = options.only.partition("/")[0]
    if not (paths.CONTRIBUTORS / handle).is_dir():
        raise UserError(f"the path begins with a kernel: nox -s new -- {handle} rotate_half")
    with smoke.started(shared.device(options), options.verbose) as (server, compiler):
        show(handle, server, compiler, options.op)
    return 0


def show(handle: str, server: ForkServer, compiler: Compiler, op: str | None = None) -> bool:
    """Print how far a folder is on the path, and the next hint; return whether it is at its end.

    Args:
        handle: The folder's name.
        server: The fork server that runs the solutions.
        compiler: Compiles their kernels, since what does not compile is not done.
        op: Only the exercises of this op.

    Raises:
        UserError: The op has no exercise.
    """
    exercises = path(op)
    if not exercises:
        known = ", ".join(dict.fromkeys(each.op for each in path()))
        raise UserError(f"{op} has no exercise: there are some of {known}")
    progress = Progress(handle, server, compiler)
    for number, exercise in enumerate(exercises):
        lacks = progress.lacks(exercise)
        if lacks:
            print(f"{handle}: {number} of {len(exercises)} exercises are done.\n")
            task = exercise.task.replace("HANDLE", handle).strip()
            print(f"Exercise {number + 1}, {exercise.op}: {exercise.title}.\n{wrapped(task)}\n")
            print(wrapped(f"Not yet: {lacks}."))
            print(wrapped(_hint(handle, number, exercise)))
            return False
    print(f"{handle}: all {len(exercises)} exercises are done. Next: nox -s bench leaderboard")
    return True


def _hint(handle: str, number: int, exercise: Exercise) -> str:
    """Return the next hint of an exercise; after the last one, the first again."""
    kept = Kept("hints", handle, str)
    given = kept.found.get(exercise.title, 0)
    kept.found[exercise.title] = given + 1
    kept.save()
    place = given % len(exercise.hints)
    more = "`--hint` again gives the next one." if place + 1 < len(exercise.hints) else ""
    return f"Hint {place + 1} of {len(exercise.hints)}: {exercise.hints[place]} {more}".rstrip()


class Progress:
    """The verdicts and the counted work of a folder's files, each found once."""

    def __init__(self, handle: str, server: ForkServer, compiler: Compiler) -> None:
        """Find nothing yet; see `show`."""
        self._handle, self._server, self._compiler = handle, server, compiler
        self._verdicts: dict[str, dict[str, set[str]]] = {}
        self._counts: dict[str, list[Counted]] = {}

    def lacks(self, exercise: Exercise) -> str:
        """Return what an exercise lacks in a few words; nothing if it is done."""
        from common import ops

        solution = Solution(paths.CONTRIBUTORS / self._handle / f"{exercise.op}.py", exercise.op)
        if not solution.path.exists():
            return f"there is no {self._handle}/{exercise.op}.py"
        op = ops.load(exercise.op)
        asked = [
            case.name
            for case in op.tier("smoke", self._server.device)
            if _is_like(op, case, exercise.answers)
        ]
        found = self._verdicts_of(solution)
        wrong = Counter(
            verdict for name in asked for verdict in found.get(name, {"UNSUPPORTED"}) - {"PASSED"}
        )
        if wrong:
            ((verdict, count),) = wrong.most_common(1)
            return f"{verdict} in {count} of {len(asked)} cases; `check {self._handle}` says where"
        if not exercise.measure:
            return ""
        words, measure = MEASURES[exercise.measure]
        elements = {
            case.name: math.prod(op.output(case))
            for case in op.cases("board")
            if _is_like(op, case, exercise.where)
        }
        counts = [each for each in self._counts_of(solution) if each.case in elements]
        worst = max((measure(each, elements[each.case]) for each in counts), default=math.inf)
        if worst <= exercise.most:
            return ""
        return f"{words.format(f'{worst:.4g}')}, and at most {exercise.most:g} in this exercise"

    def _verdicts_of(self, solution: Solution) -> dict[str, set[str]]:
        """Return the verdicts of each smoke case."""
        if solution.op not in self._verdicts:
            with (
                closing(smoke.grade([solution], self._server, None)) as cases,
                closing(smoke.compiled(cases, self._compiler)) as found,
            ):
                self._verdicts[solution.op] = {
                    each.case.name: {one.verdict for one in each.verdicts.values()}
                    for each in found
                }
        return self._verdicts[solution.op]

    def _counts_of(self, solution: Solution) -> list[Counted]:
        """Return the counted work of the board's cases."""
        from common.engines.benching import counts

        if solution.op not in self._counts:  # which no record keeps, so that no digest is needed
            self._counts[solution.op] = list(counts([solution], "", {solution: ("", "")}))
        return self._counts[solution.op]


def _is_like(op: Op[Any], case: Case, facts: Mapping[str, Any]) -> bool:
    """Return whether a case has these facts."""
    return facts.items() <= dict(op.facts(case)).items()


def _operators(work: Counted, elements: int) -> float:
    return sum(not isinstance(step, Launch) for step in work.steps)


def _programs(work: Counted, elements: int) -> float:
    largest = max((step.programs for step in work.steps if isinstance(step, Launch)), default=0)
    return largest / max(elements / 1024, 1)


def _fetched(work: Counted, elements: int) -> float:
    return modelled.fetched(work) / max(modelled.read(work), 1)


def _flops(work: Counted, elements: int) -> float:
    return modelled.multiplied(work) / max(work.flops, 1)


MEASURES: dict[str, tuple[str, Callable[[Counted, int], float]]] = {
    "operators": ("a call runs {} of torch's operators", _operators),
    "programs": ("a launch has {} programs for 1,024 elements", _programs),
    "fetched": ("programs fetch {} times the bytes that a launch reads", _fetched),
    "flops": ("a call computes {} times the least FLOPs", _flops),
}
"""By name, the sentence that states a measure, and the measure of a case's counted work, whose
output has so many elements."""
