"""`study check HANDLE --hint`: the exercises of the path that are done, and a hint for the next.

The path is data, `common/exercises.toml`. What a folder has done is found anew from its files: by
the verdicts of smoke cases, and by the counted work of the board's cases, which needs no GPU.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec

from common import paths
from common.errors import UserError
from common.kept import Kept
from common.printable import wrapped
from common.solutions import Solution

if TYPE_CHECKING:
    from common.grading.compiling import Compiler
    from common.grading.counting import Count
    from common.grading.fork_server import ForkServer
    from common.records.lines import Launch, Operator
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
        self._counts: dict[str, list[Count]] = {}

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
        counts = [
            Work.of(each)
            for each in self._counts_of(solution)
            if _is_like(op, each.case, exercise.where)
        ]
        worst = max((measure(each) for each in counts), default=float("inf"))
        if worst <= exercise.most:
            return ""
        return f"{words.format(f'{worst:.4g}')}, and at most {exercise.most:g} in this exercise"

    def _verdicts_of(self, solution: Solution) -> dict[str, set[str]]:
        """Return the verdicts of each smoke case."""
        from common.commands import smoke

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

    def _counts_of(self, solution: Solution) -> list[Count]:
        """Return the counted work of the board's cases."""
        from common.grading.counting import count

        if solution.op not in self._counts:
            self._counts[solution.op] = list(count([solution]))
        return self._counts[solution.op]


def _is_like(op: Op[Any], case: Case, facts: Mapping[str, Any]) -> bool:
    """Return whether a case has these facts."""
    return facts.items() <= dict(op.facts(case)).items()


@dataclass(frozen=True)
class Work:
    """The counted work of one call of a case, forward or forward with backward."""

    count: Count
    launches: Sequence[Launch]
    others: Sequence[Operator]

    @classmethod
    def of(cls, count: Count) -> Self:
        """Return the work of a count."""
        from common.records.lines import Launch, Operator, Steps

        steps = msgspec.convert(count.steps, Steps)
        launches = [step for step in steps if isinstance(step, Launch)]
        return cls(count, launches, [step for step in steps if isinstance(step, Operator)])

    @property
    def programs(self) -> float:
        """The programs of the largest launch for 1,024 elements of the output."""
        elements = math.prod(self.count.op.output(self.count.case))
        return max((each.programs for each in self.launches), default=0) / max(elements / 1024, 1)

    @property
    def fetched(self) -> float:
        """The bytes that programs fetch over those that a launch reads."""
        read = sum(each.read for each in self.launches)
        return sum(each.fetched for each in self.launches) / max(read, 1)

    @property
    def flops(self) -> float:
        """The operations of products over the least that the case takes."""
        least = self.count.op.timed_work(self.count.case, self.count.direction).flops
        of_launches = sum(sum(each.flops.values()) for each in self.launches)
        return (of_launches + sum(each.flops for each in self.others)) / max(least, 1)


MEASURES: dict[str, tuple[str, Callable[[Work], float]]] = {
    "operators": ("a call runs {} of torch's operators", lambda work: len(work.others)),
    "programs": ("a launch has {} programs for 1,024 elements", lambda work: work.programs),
    "fetched": ("programs fetch {} times the bytes that a launch reads", lambda work: work.fetched),
    "flops": ("a call computes {} times the least FLOPs", lambda work: work.flops),
}
"""The sentence that states a measure of the counted work, and the measure, by name."""
