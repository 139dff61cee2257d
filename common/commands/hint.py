"""`study check HANDLE --hint`: the exercises of the path that are done, and a hint for the next.

The path is data, `common/exercises.toml`. What a folder has done is found from its files: by the
verdicts of smoke cases, and by the counted work of the board's cases, which needs no GPU. Both are
kept, so that a file which did not change is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from common import paths
from common.board import modelled
from common.commands import options as shared
from common.commands import smoke
from common.disk_cache import DiskCache
from common.errors import UserError
from common.printable import wrapped
from common.records.lines import Counted, Launch
from common.solutions import Solution, discover, left_out
from common.verdicts import ENDED

if TYPE_CHECKING:
    from common.grading.compiling import Compiler
    from common.grading.fork_server import ForkServer
    from common.spec import Case, Op

AGAIN = ENDED | {"COMPILE_ERROR", "RUNTIME_ERROR"}
"""The verdicts that the machine may be the reason of: these cases are run again."""
CAUSES = ""
"""Beside a solution's verdicts by case, the name under which the mistakes stand that it makes."""


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
    every = msgspec.convert(_content()["exercise"], tuple[Exercise, ...])
    return tuple(each for each in every if op in (None, each.op))


def causes(op: str) -> dict[str, str]:
    """Return the hint for words that `check` says of a wrong solution of an op, by these words."""
    return dict(_content()["causes"].get(op, {}))


def _content() -> dict[str, Any]:
    return tomllib.loads((paths.COMMON / "exercises.toml").read_text(encoding="utf-8"))


def run(options: argparse.Namespace) -> int:
    """Print the place of the folder named by `options.only` on the path; return 0.

    Raises:
        UserError: There is no such folder, the op has no exercise, or a case is named.
    """
    if options.case:
        raise UserError("--hint takes the cases of the exercise: leave --case out")
    handle = options.only.partition("/")[0]
    if handle in left_out():
        shared.contributors(options)  # says why
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
        lack = progress.lacks(exercise)
        if lack:
            print(f"{handle}: {number} of {len(exercises)} exercises are done.\n")
            task = exercise.task.replace("HANDLE", handle).strip()
            print(f"Exercise {number + 1}, {exercise.op}: {exercise.title}.\n{wrapped(task)}\n")
            print(wrapped(f"Not yet: {lack.words}."))
            print(wrapped(_hint(handle, exercise, lack.told)))
            return False
    print(f"{handle}: all {len(exercises)} exercises are done. Next: nox -s bench leaderboard")
    return True


def _hint(handle: str, exercise: Exercise, told: str = "") -> str:
    """Return the next hint, first those for what `check` tells; after the last, the first again."""
    kept = DiskCache("hints", handle, str)
    fitting = [hint for words, hint in causes(exercise.op).items() if words in told]
    hints = [*fitting, *exercise.hints]
    given = kept.found.get(exercise.title, [])
    if not (left := [hint for hint in hints if hint not in given]):
        given, left = [], hints
    kept.found[exercise.title] = [*given, left[0]]
    kept.save()
    more = "`--hint` again gives the next one." if len(left) > 1 else ""
    return f"Hint {hints.index(left[0]) + 1} of {len(hints)}: {left[0]} {more}".rstrip()


class Lack(NamedTuple):
    """What an exercise lacks, and what `check` tells of the cases that do not pass."""

    words: str
    told: str = ""


class Progress:
    """The verdicts and the counted work of a folder's files, each found once."""

    def __init__(self, handle: str, server: ForkServer, compiler: Compiler) -> None:
        """Find nothing yet; see `show`."""
        self._handle, self._server, self._compiler = handle, server, compiler
        self._answers: dict[str, dict[str, list[str]]] = {}
        self._counts: dict[str, list[Counted]] = {}

    def lacks(self, exercise: Exercise) -> Lack | None:
        """Return what the op's file that was saved last lacks; None if any file lacks nothing."""
        mine = self._handle, exercise.op
        files = [each for each in discover(paths.CONTRIBUTORS) if (each.handle, each.op) == mine]
        files.sort(key=lambda file: file.path.stat().st_mtime, reverse=True)
        latest = None
        for solution in files:
            if not (lack := self._lack(exercise, solution)):
                return None
            latest = latest or lack
        return latest or Lack(f"there is no {self._handle}/{exercise.op}.py")

    def _lack(self, exercise: Exercise, solution: Solution) -> Lack | None:
        """Return what a file lacks; None if it does the exercise."""
        from common import ops

        op = ops.load(exercise.op)
        asked = [
            case.name
            for case in op.tier("smoke", self._server.device)
            if _is_like(op, case, exercise.answers)
        ]
        found = self._answers_of(solution)
        answers = [found.get(name, ["UNSUPPORTED"]) for name in asked]
        wrong = Counter(each for texts in answers for each in _verdicts(texts) - {"PASSED"})
        if wrong:
            ((verdict, count),) = wrong.most_common(1)
            because = f" ({'; '.join(found[CAUSES])})" if found[CAUSES] else ""
            more = f"`check {self._handle}` says where"
            words = f"{solution.name}: {verdict} in {count} of {len(asked)} cases{because}; {more}"
            # forward's mistake comes first, and may be all that is wrong with backward
            return Lack(words, "\n".join([*found[CAUSES][:1], *itertools.chain(*answers)]))
        if not exercise.measure:
            return None
        words, measure = MEASURES[exercise.measure]
        elements = {
            case.name: math.prod(op.output(case))
            for case in op.cases("board")
            if _is_like(op, case, exercise.where)
        }
        counts = [counted for counted in self._counts_of(solution) if counted.case in elements]
        worst = max(
            (measure(counted, elements[counted.case]) for counted in counts), default=math.inf
        )
        if worst <= exercise.most:
            return None
        is_so = words.format(f"{worst:.4g}")
        return Lack(f"{solution.name}: {is_so}, and at most {exercise.most:g} in this exercise")

    def _answers_of(self, solution: Solution) -> dict[str, list[str]]:
        """Return the verdicts of each smoke case with their reasons, and the CAUSES."""
        from common import ops
        from common.grading import diagnosis

        if solution.name not in self._answers:
            device = self._server.device
            kept = DiskCache("exercises", solution.name, lambda: f"{device} {solution.digest}")
            known = {CAUSES: [], **kept.found}
            names = [case.name for case in ops.load(solution.op).tier("smoke", device)]
            if only := {(solution.name, name) for name in names if name not in known}:
                with (
                    closing(
                        smoke.grade_smoke_cases([solution], self._server, None, only=only)
                    ) as cases,
                    closing(smoke.compiled(cases, self._compiler)) as found,
                ):
                    graded = list(found)
                for each in graded:
                    texts = (f"{one.verdict} {one.reason}" for one in each.verdicts.values())
                    known[each.case.name] = list(dict.fromkeys(texts))
                known[CAUSES] += [
                    f"{' and '.join(cause.directions)}: {cause.mistake}"
                    for cause in diagnosis.causes(graded)
                ]
                kept.found = {
                    name: texts
                    for name, texts in known.items()
                    if AGAIN.isdisjoint(_verdicts(texts))
                }
                kept.save()
            self._answers[solution.name] = known
        return self._answers[solution.name]

    def _counts_of(self, solution: Solution) -> list[Counted]:
        """Return the counted work of the board's cases."""
        from common.engines.benching import counts

        if solution.name not in self._counts:  # no record keeps them: no digest is needed
            self._counts[solution.name] = list(counts([solution], "", {solution: ("", "")}))
        return self._counts[solution.name]


def _verdicts(texts: Iterable[str]) -> set[str]:
    """Return the verdicts of texts that go on with their reasons."""
    return {text.partition(" ")[0] for text in texts}


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
