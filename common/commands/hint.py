"""`study check HANDLE --hint`: print the exercises, which of them are done, and the next hint.

`common/exercises.toml` declares the exercises. An exercise is done if a file of the folder passes
its smoke cases and its limit of the counted work of the board's cases, which needs no GPU. Verdicts
and counts are cached, so that an unchanged file is not run again.
"""

from __future__ import annotations

import argparse
import functools
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from common import ops, paths
from common.commands.grader import Asked, Grader
from common.disk_cache import DiskCache
from common.engines.counting import counts
from common.errors import UserError
from common.grading import diagnosis
from common.ops._draw import facts_of
from common.printable import translated, wrapped
from common.records.lines import Counted
from common.solutions import Solution, discover
from common.spec import Case, Op
from common.verdicts import ENDED

AGAIN = ENDED | {"COMPILE_ERROR", "RUNTIME_ERROR"}
"""The verdicts that the machine may cause; a solution with one of them is run again."""


class Exercise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An exercise of `common/exercises.toml`, whose head explains the fields."""

    op: str
    title: str
    task: str
    answers: dict[str, Any]
    where: dict[str, Any] = {}
    measure: str = ""
    """A name of MEASURES; empty without a measure."""
    most: float = 0.0
    hints: tuple[str, ...]


class Hint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hint for wrong solutions: those with a mistake, verdict or direction in `of`."""

    of: frozenset[str]
    hint: str
    op: str = ""
    """Empty for every op."""


class Path(msgspec.Struct, frozen=True):
    """The content of `common/exercises.toml`; `measure` has a sentence for each of MEASURES."""

    exercise: tuple[Exercise, ...]
    hint: tuple[Hint, ...]
    measure: dict[str, str]


@functools.cache
def path() -> Path:
    """Return the path."""
    text = (paths.COMMON / "exercises.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Path)


def run(grader: Grader, options: argparse.Namespace, before: str = "") -> str:
    """Print the next exercise and a hint, for the folder `options.only`; return the title.

    It is "" if all are done. `before` is the title that was printed last: the path and the task are
    not printed again.

    Raises:
        UserError: The op has no exercise.
    """
    handle, op = options.only.partition("/")[0], options.op
    exercises = [exercise for exercise in path().exercise if op in (None, exercise.op)]
    if not exercises:
        known = ", ".join(dict.fromkeys(each.op for each in path().exercise))
        raise UserError(f"{op} has no exercise: there are some of {known}")
    files = files_of(handle, grader)
    lacks = [lack_of(files, handle, exercise) or unread(handle, exercise) for exercise in exercises]
    number = next((place for place, lack in enumerate(lacks) if lack), None)
    if number is None:
        print(translated(f"{handle}: all {len(exercises)} exercises are done. Well done!"))
        print(translated("Next: contributors/steps, a ladder from such kernels to the house's"))
        return ""
    exercise, lack = exercises[number], lacks[number] or Lack("")
    titles = [each.title for each in exercises]
    if before in titles[number + 1 :]:
        waits = f"Exercise {titles.index(before) + 1} waits: first mend what passed before."
        print(translated(waits))
    elif exercise.title != before:
        done = len(lacks) - sum(map(bool, lacks))
        print(translated(f"{handle}: {done} of {len(exercises)} exercises are done."))
        for place, each in enumerate(exercises):
            mark = ">" if place == number else " " if lacks[place] else "✓"
            print(f"  {mark} {place + 1:2} {each.op:13} {translated(each.title)}")
        print(translated(f"\nExercise {number + 1}, {exercise.op}: {exercise.title}."))
        print(wrapped(translated(exercise.task.strip()).replace("HANDLE", handle)), end="\n\n")
    where = "see above" if options.watch else f"`nox -s check -- {handle}` says where"
    words = f"{lack.words}; {where}" if lack.signs else lack.words
    print(wrapped(translated(f"Not yet: {words}.")))
    print(wrapped(next_hint(handle, exercise, lack.signs, options.watch)), flush=True)
    return exercise.title


def unread(handle: str, exercise: Exercise) -> Lack | None:
    """Return the lack of the first exercise, which asks for no change, until it was printed."""
    if exercise != path().exercise[0] or exercise.title in DiskCache("hints", handle, str).found:
        return None
    return Lack("it is there to be read and tried; the next `--hint` takes it as done")


def next_hint(
    handle: str, exercise: Exercise, signs: Set[str] = frozenset(), watched: bool = False
) -> str:
    """Return the next hint, first the hints for what is wrong; start over after the last."""
    cache = DiskCache("hints", handle, str)
    hints = [*hints_of(exercise.op, signs), *exercise.hints]
    printed = cache.found.get(exercise.title, [])
    if not (left := [hint for hint in hints if hint not in printed]):
        printed, left = [], hints
    cache.found[exercise.title] = [*printed, left[0]]
    cache.save()
    how = "The next save shows" if watched else "`--hint` again gives"
    more = f" {how} the next one." * (len(left) > 1)
    return translated(f"Hint {hints.index(left[0]) + 1} of {len(hints)}: {left[0]}{more}")


def hints_of(op: str, signs: Set[str]) -> list[str]:
    """Return the hints of an op for these mistakes, verdicts and directions."""
    return [each.hint for each in path().hint if each.op in ("", op) and each.of & signs]


# --- what an exercise lacks -----------------------------------------------------------------------


class Lack(NamedTuple):
    """The reason why an exercise is not done, and the mistakes, verdicts and directions in it."""

    words: str
    signs: Set[str] = frozenset()


def lack_of(files: Sequence[File], handle: str, exercise: Exercise) -> Lack | None:
    """Return the lack of the op's first file; None if any file of the op does the exercise."""
    op = exercise.op
    first = Lack(f"there is no {handle}/{op}.py: `nox -s new -- {handle} {op}` writes it")
    for number, file in enumerate(file for file in files if file.solution.op == exercise.op):
        if not (lack := file.lack(exercise)):
            return None
        first = first if number else lack
    return first


def files_of(handle: str, grader: Grader) -> list[File]:
    """Return the solutions of a folder, the newest first."""
    solutions = [each for each in discover(paths.CONTRIBUTORS) if each.handle == handle]
    solutions.sort(key=lambda solution: solution.path.stat().st_mtime, reverse=True)
    return [File(solution, grader) for solution in solutions]


@dataclass(frozen=True)
class File:
    """A solution, with its verdicts and its counted work."""

    solution: Solution
    grader: Grader

    def lack(self, exercise: Exercise) -> Lack | None:
        """Return the file's lack; None if the file does the exercise."""
        op = ops.load(exercise.op)
        return self._wrong(op, exercise) or self._excess(op, exercise)

    def _wrong(self, op: Op[Any], exercise: Exercise) -> Lack | None:
        """Return the most frequent failure in the exercise's smoke cases."""
        cases = [case.name for case in op.tier("smoke", self.grader.device)
                 if is_like(op, case, exercise.answers)]  # fmt: skip
        asked = [self.verdicts["cases"].get(case, {"forward": "UNSUPPORTED"}) for case in cases]
        wrong = Counter(name for each in asked for name in {*each.values()} - {"PASSED"})
        if not wrong:
            return None
        mistakes = self.verdicts["mistakes"]
        ((verdict, count),) = wrong.most_common(1)
        causes = "; ".join(f"{' and '.join(directions)}: {', or: '.join(names)}"
                           for directions, names in mistakes)  # fmt: skip
        words = f"{self.solution.name}: {verdict} in {count} of {len(cases)} cases"
        words += f" ({causes})" if causes else ""
        # forward's mistake is the first, and may be the only cause of backward's failures
        signs = {*wrong, *(name for _, names in mistakes[:1] for name in names)}
        of_values = {each.get("backward", "PASSED") for each in asked
                     if each.get("forward") == "PASSED"} - {"PASSED", "RUNTIME_ERROR"}  # fmt: skip
        return Lack(words, signs | ({"backward"} if of_values else set()))

    def _excess(self, op: Op[Any], exercise: Exercise) -> Lack | None:
        """Return by how much the counted work exceeds the exercise's limit."""
        if not exercise.measure:
            return None
        elements = {case.name: op.elements(case) for case in op.cases("board")
                    if is_like(op, case, exercise.where)}  # fmt: skip
        found = [(MEASURES[exercise.measure](work, elements[work.case]), work.is_rough)
                 for work in counts([self.solution]) if work.case in elements]  # fmt: skip
        worst, rough = max(found, default=(math.inf, False))
        if worst <= exercise.most:
            return None
        words = path().measure[exercise.measure].format("~" * rough + f"{worst:.4g}")
        limit = f"at most {exercise.most:g} in this exercise"
        return Lack(f"{self.solution.name}: {words}, and {limit}")

    @cached_property
    def verdicts(self) -> dict[str, Any]:
        """The verdicts of the smoke cases, kept on disk unless the machine may have caused one.

        `cases` has the verdict of each direction by case; `mistakes` has the directions of each
        diagnosis with the mistakes that may cause it.
        """
        solution, device = self.solution, self.grader.device
        cache = DiskCache("exercises", solution.name, lambda: f"{device} {solution.digest}")
        if not cache.found:
            with closing(self.grader.smoke_cases(Asked([solution]))) as cases:
                graded = list(cases)
            verdicts = {each.case.name: {name: one.verdict for name, one in each.verdicts.items()}
                        for each in graded}  # fmt: skip
            mistakes = [(cause.directions, cause.mistakes) for cause in diagnosis.causes(graded)]
            cache.found = {"cases": verdicts, "mistakes": mistakes}
        if not any(AGAIN.intersection(each.values()) for each in cache.found["cases"].values()):
            cache.save()
        return cache.found


def is_like(op: Op[Any], case: Case, facts: Mapping[str, Any]) -> bool:
    """Return whether a case has all of these facts."""
    return facts.items() <= facts_of(op, case).items()


MEASURES: dict[str, Callable[[Counted, int], float]] = {
    "operators": lambda work, elements: len(work.operators),
    "programs": lambda work, elements: (
        max([0, *(each.programs for each in work.launches)]) / max(elements / 1024, 1)
    ),
    "fetched": lambda work, elements: work.read_again,
    "flops": lambda work, elements: work.multiplied / max(work.flops, 1),
}
"""By name, the function from a case's counted work and number of output elements to a measure."""
