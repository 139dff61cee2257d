"""`study check HANDLE --hint`: print the number of done exercises, and a hint for the next.

`common/exercises.toml` declares the exercises. An exercise is done if a file of the folder passes
its smoke cases and its limit of the counted work of the board's cases, which needs no GPU. Verdicts
and counts are cached, so that an unchanged file is not run again.
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
"""The verdicts that the machine may cause; their cases are run again."""
CAUSES = ""
"""The key of a solution's diagnosed mistakes; the other keys are the names of cases."""


class Exercise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An exercise of `common/exercises.toml`."""

    op: str
    title: str
    task: str
    answers: dict[str, Any]
    """The facts of the smoke cases that must pass; empty for all cases."""
    where: dict[str, Any] = {}
    """The facts of the board's cases whose work is measured."""
    measure: str = ""
    """A name of MEASURES; empty without a measure."""
    most: float = 0.0
    """The largest measure that passes."""
    hints: tuple[str, ...]


def path(op: str | None = None) -> tuple[Exercise, ...]:
    """Return the exercises in order; with `op` only the op's exercises."""
    exercises = msgspec.convert(_content()["exercise"], tuple[Exercise, ...])
    return tuple(exercise for exercise in exercises if op in (None, exercise.op))


def causes(op: str) -> dict[str, str]:
    """Return hints for wrong solutions of an op, by words in the output of `check`."""
    return dict(_content()["causes"].get(op, {}))


def _content() -> dict[str, Any]:
    return tomllib.loads((paths.COMMON / "exercises.toml").read_text(encoding="utf-8"))


def run(options: argparse.Namespace) -> int:
    """Print the done exercises and a hint for the folder `options.only`; return 0.

    Raises:
        UserError: The folder does not exist, the op has no exercise, or a case is named.
    """
    if options.case:
        raise UserError("--hint takes the cases of the exercise: leave --case out")
    handle = options.only.partition("/")[0]
    if handle in left_out():
        shared.contributors(options)  # raises the error with the reason
    if not (paths.CONTRIBUTORS / handle).is_dir():
        raise UserError(f"the path begins with a kernel: nox -s new -- {handle} rotate_half")
    with smoke.started(shared.device(options), options.verbose) as (server, compiler):
        show(handle, server, compiler, options.op)
    return 0


def show(handle: str, server: ForkServer, compiler: Compiler, op: str | None = None) -> bool:
    """Print the number of done exercises and the next hint; return whether all are done.

    Args:
        handle: The folder's name.
        server: The fork server that runs the solutions.
        compiler: Compiles the solutions' kernels, which must compile for an exercise to be done.
        op: The op of the exercises; all ops for None.

    Raises:
        UserError: The op has no exercise.
    """
    exercises = path(op)
    if not exercises:
        known = ", ".join(dict.fromkeys(exercise.op for exercise in path()))
        raise UserError(f"{op} has no exercise: there are some of {known}")
    progress = Progress(handle, server, compiler)
    for number, exercise in enumerate(exercises):
        lack = progress.lacks(exercise)
        if lack:
            print(f"{handle}: {number} of {len(exercises)} exercises are done.\n")
            task = exercise.task.replace("HANDLE", handle).strip()
            print(f"Exercise {number + 1}, {exercise.op}: {exercise.title}.\n{wrapped(task)}\n")
            print(wrapped(f"Not yet: {lack.words}."))
            print(wrapped(_hint(handle, exercise, lack.output)))
            return False
    print(f"{handle}: all {len(exercises)} exercises are done. Next: nox -s bench leaderboard")
    return True


def _hint(handle: str, exercise: Exercise, output: str = "") -> str:
    """Return the next hint, first the hints for the output of `check`; start over at the end."""
    cache = DiskCache("hints", handle, str)
    fitting = [hint for words, hint in causes(exercise.op).items() if words in output]
    hints = [*fitting, *exercise.hints]
    printed = cache.found.get(exercise.title, [])
    if not (left := [hint for hint in hints if hint not in printed]):
        printed, left = [], hints
    cache.found[exercise.title] = [*printed, left[0]]
    cache.save()
    more = "`--hint` again gives the next one." if len(left) > 1 else ""
    return f"Hint {hints.index(left[0]) + 1} of {len(hints)}: {left[0]} {more}".rstrip()


class Lack(NamedTuple):
    """The reason why an exercise is not done, and the output of `check` on the failing cases."""

    words: str
    output: str = ""


class Progress:
    """The verdicts and the counted work of a folder's files, cached."""

    def __init__(self, handle: str, server: ForkServer, compiler: Compiler) -> None:
        """Run nothing yet; see `show` for the parameters."""
        self._handle, self._server, self._compiler = handle, server, compiler
        self._answers: dict[str, dict[str, list[str]]] = {}
        self._counts: dict[str, list[Counted]] = {}

    def lacks(self, exercise: Exercise) -> Lack | None:
        """Return the lack of the op's newest file; None if any file of the op does the exercise."""
        files = [
            solution
            for solution in discover(paths.CONTRIBUTORS)
            if (solution.handle, solution.op) == (self._handle, exercise.op)
        ]
        files.sort(key=lambda file: file.path.stat().st_mtime, reverse=True)
        latest = None
        for solution in files:
            if not (lack := self._lack(exercise, solution)):
                return None
            latest = latest or lack
        return latest or Lack(f"there is no {self._handle}/{exercise.op}.py")

    def _lack(self, exercise: Exercise, solution: Solution) -> Lack | None:
        """Return a file's lack; None if the file does the exercise."""
        from common import ops

        op = ops.load(exercise.op)
        asked = [
            case.name
            for case in op.tier("smoke", self._server.device)
            if _is_like(op, case, exercise.answers)
        ]
        known = self._answers_of(solution)
        answers = [known.get(name, ["UNSUPPORTED"]) for name in asked]
        wrong = Counter(verdict for texts in answers for verdict in _verdicts(texts) - {"PASSED"})
        if wrong:
            ((verdict, count),) = wrong.most_common(1)
            because = f" ({'; '.join(known[CAUSES])})" if known[CAUSES] else ""
            more = f"`nox -s check -- {self._handle}` says where"
            words = f"{solution.name}: {verdict} in {count} of {len(asked)} cases{because}; {more}"
            # forward's mistake is the first, and may be the only cause of backward's failures
            return Lack(words, "\n".join([*known[CAUSES][:1], *itertools.chain(*answers)]))
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
        measured = words.format(f"{worst:.4g}")
        return Lack(f"{solution.name}: {measured}, and at most {exercise.most:g} in this exercise")

    def _answers_of(self, solution: Solution) -> dict[str, list[str]]:
        """Return each smoke case's verdicts with their reasons, and the mistakes under CAUSES."""
        from common import ops
        from common.grading import diagnosis

        if solution.name not in self._answers:
            device = self._server.device
            cache = DiskCache(
                "exercises", solution.name, lambda: f"{device} {solution.text_digest}"
            )
            known = {CAUSES: [], **cache.found}
            names = [case.name for case in ops.load(solution.op).tier("smoke", device)]
            if only := {(solution.name, name) for name in names if name not in known}:
                with (
                    closing(
                        smoke.grade_smoke_cases([solution], self._server, None, only=only)
                    ) as cases,
                    closing(smoke.compiled(cases, self._compiler)) as compiled,
                ):
                    graded_cases = list(compiled)
                for graded in graded_cases:
                    texts = (
                        f"{verdict.verdict} {verdict.reason}"
                        for verdict in graded.verdicts.values()
                    )
                    known[graded.case.name] = list(dict.fromkeys(texts))
                known[CAUSES] += [
                    f"{' and '.join(cause.directions)}: {cause.mistake}"
                    for cause in diagnosis.causes(graded_cases)
                ]
                cache.found = {
                    name: texts
                    for name, texts in known.items()
                    if AGAIN.isdisjoint(_verdicts(texts))
                }
                cache.save()
            self._answers[solution.name] = known
        return self._answers[solution.name]

    def _counts_of(self, solution: Solution) -> list[Counted]:
        """Return the counted work of the board's cases."""
        from common.engines.benching import counts

        if solution.name not in self._counts:  # without digests, which only records need
            self._counts[solution.name] = list(counts([solution], "", {solution: ("", "")}))
        return self._counts[solution.name]


def _verdicts(texts: Iterable[str]) -> set[str]:
    """Return the verdicts at the start of texts of a verdict and a reason."""
    return {text.partition(" ")[0] for text in texts}


def _is_like(op: Op[Any], case: Case, facts: Mapping[str, Any]) -> bool:
    """Return whether a case has all of these facts."""
    from common.ops._draw import facts_of

    return facts.items() <= facts_of(op, case).items()


def _operators(work: Counted, elements: int) -> float:
    return sum(not isinstance(step, Launch) for step in work.steps)


def _programs(work: Counted, elements: int) -> float:
    largest = max((step.programs for step in work.steps if isinstance(step, Launch)), default=0)
    return largest / max(elements / 1024, 1)


def _fetched(work: Counted, elements: int) -> float:
    return modelled.fetched(work) / max(modelled.read(work), 1)


def _flops(work: Counted, elements: int) -> float:
    return modelled.multiplied(modelled.bound(work, -1)) / max(work.flops, 1)


MEASURES: dict[str, tuple[str, Callable[[Counted, int], float]]] = {
    "operators": ("a call runs {} of torch's operators", _operators),
    "programs": ("a launch has {} programs for 1,024 elements", _programs),
    "fetched": ("programs fetch {} times the bytes that a launch reads", _fetched),
    "flops": ("a call computes {} times the least FLOPs", _flops),
}
"""By name, the sentence that states a measure, and the function from a case's counted work and
number of output elements to the measure."""
