"""Run `grade` on an engine's devices, and continue from the verdicts that a file keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from common.engines.engine import Answer, Engine, TooLargeAnswer, VerdictsAnswer
from common.measure.machine import digests_of
from common.records import jsonl
from common.verdicts import Verdict


@dataclass(frozen=True)
class Begins:
    """The number of all solutions' cases, the number of kept ones, and messages for the user."""

    cases: int
    kept: int
    notes: Sequence[str]


@dataclass(frozen=True)
class Found:
    """The verdicts of one solution on one case, on a kind of device."""

    kind: str
    verdicts: list[Verdict]
    kept: bool = False


class Sources(msgspec.Struct, frozen=True, tag="sources"):
    """The first line of each run: another run may continue it if all fields are the same."""

    digests: dict[str, tuple[str, str]]
    """The digests of a solution and of the harness, by solution."""
    tier: str
    sample: int | None
    versions: dict[str, dict[str, str]]
    """The versions of the packages, by kind of device."""


class Line(msgspec.Struct, frozen=True, tag="verdicts"):
    """The verdicts of one solution on one case."""

    kind: str
    found: tuple[dict[str, Any], ...]
    """The `Verdict.json` of each verdict."""


_FORMAT: jsonl.Format[Sources | Line] = jsonl.Format(
    msgspec.json.Decoder(Sources | Line), 1, "grade"
)


def part_of(target: Path) -> Path:
    """Return the path of the partial verdicts: `verdicts.json.part` for `verdicts.json`."""
    return target.with_name(target.name + ".part")


def grade_all(
    engine: Engine, target: Path | None
) -> Generator[Begins | Found | TooLargeAnswer | str]:
    """Yield the number of cases, then all verdicts, first those of an interrupted run.

    A string is a message for the user.

    Args:
        engine: The devices, with the job.
        target: The file that the caller writes the verdicts to. Until the caller removes it, a file
            next to it keeps the partial verdicts as JSON lines.

    Raises:
        UserError: Another run is writing, or no device is left.
    """
    with contextlib.ExitStack() as files, engine:
        sources = _sources(engine)
        kept = _kept(part_of(target), sources) if target else []
        lines = None
        if target:
            lines = files.enter_context(contextlib.closing(_open(part_of(target), sources)))
        absent = sum(line.kind not in engine.kinds for line in kept)
        total = sum(map(engine.count, engine.kinds)) + absent
        yield Begins(total, len(kept), engine.notes)
        for line in kept:
            yield Found(line.kind, [Verdict(**fields) for fields in line.found], kept=True)
        for kind, answers in _graded(engine, kept):
            if isinstance(answers, str):
                yield answers
                continue
            graded = [answer for answer in answers if isinstance(answer, VerdictsAnswer)]
            if lines:
                verdicts = (tuple(verdict.json for verdict in answer.found) for answer in graded)
                lines.write(*(Line(kind, fields) for fields in verdicts))
            yield from (Found(kind, [*answer.found]) for answer in graded)
            yield from (answer for answer in answers if isinstance(answer, TooLargeAnswer))


def _graded(engine: Engine, kept: Sequence[Line]) -> Iterator[tuple[str, list[Answer] | str]]:
    tasks = {}
    for kind in engine.kinds:
        firsts = (line.found[0] for line in kept if line.kind == kind)
        done = {(first["solution"], first["op"], first["case"]) for first in firsts}
        tasks[kind] = engine.tasks(kind, done=done)
    yield from engine.run(tasks)


def _sources(engine: Engine) -> Sources:
    digests = {solution.name: pair for solution, pair in digests_of(engine.job.solutions).items()}
    versions = {kind: executors[0].device_info.versions for kind, executors in engine.kinds.items()}
    return Sources(digests, engine.job.tier, engine.job.sample, versions)


def _kept(path: Path, sources: Sources) -> list[Line]:
    """Return interrupted runs' verdicts of the same sources; delete a file of other sources.

    Verdicts are kept even if their kind of device has left the cluster.

    Raises:
        UserError: Another run is writing.
    """
    lines = jsonl.read(path, _FORMAT)
    if not lines:
        return []
    if all(_agree(line, sources) for line in lines if isinstance(line, Sources)):
        return [line for line in lines if isinstance(line, Line)]
    with path.open("ab") as file:
        jsonl.lock(file.fileno(), path.name)
        path.unlink()
    return []


def _agree(one: Sources, other: Sources) -> bool:
    """Return whether the work is the same, and the versions on each kind of device in both."""
    shared = one.versions.keys() & other.versions.keys()
    same = [(sources.digests, sources.tier, sources.sample) for sources in (one, other)]
    return same[0] == same[1] and all(one.versions[k] == other.versions[k] for k in shared)


def _open(path: Path, sources: Sources) -> jsonl.Writer:
    """Return the writer of the file, after it has written the run's sources."""
    lines = jsonl.Writer(path)
    lines.write(sources)
    return lines
