"""A run of `grade` on an engine's devices, which goes on from the verdicts that a file keeps."""

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
    """The number of cases of all solutions, how many of them are kept, and lines for the user."""

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
    """The first line of each run: one goes on from the verdicts where all of this is the same."""

    digests: dict[str, tuple[str, str]]
    """Of each solution, and of the harness."""
    tier: str
    sample: int | None
    versions: dict[str, dict[str, str]]
    """By kind of device."""


class Line(msgspec.Struct, frozen=True, tag="verdicts"):
    """The verdicts of one solution on one case."""

    kind: str
    found: tuple[dict[str, Any], ...]
    """As `Verdict.json` has each."""


_FORMAT: jsonl.Format[Sources | Line] = jsonl.Format(
    msgspec.json.Decoder(Sources | Line), 1, "grade"
)


def part_of(target: Path) -> Path:
    """Return the path of the verdicts so far: `verdicts.json.part` for `verdicts.json`."""
    return target.with_name(target.name + ".part")


def grade_all(
    engine: Engine, target: Path | None
) -> Generator[Begins | Found | TooLargeAnswer | str]:
    """Yield how much there is, then all verdicts, those of an interrupted run first.

    A text is a line for the user.

    Args:
        engine: The devices, with the job.
        target: The file that the verdicts will be written to; those so far stand beside it, as
            JSON lines, until the caller removes them.

    Raises:
        UserError: Another run is writing, or no device is left.
    """
    with contextlib.ExitStack() as files, engine:
        sources = _sources(engine)
        kept = _kept(part_of(target), sources) if target else []
        lines = None
        if target:
            lines = files.enter_context(contextlib.closing(_open(part_of(target), sources)))
        absent = sum(each.kind not in engine.kinds for each in kept)
        every = sum(map(engine.count, engine.kinds)) + absent
        yield Begins(every, len(kept), engine.notes)
        for each in kept:
            yield Found(each.kind, [Verdict(**fields) for fields in each.found], kept=True)
        for kind, found in _graded(engine, kept):
            if isinstance(found, str):
                yield found
                continue
            answered = [each for each in found if isinstance(each, VerdictsAnswer)]
            if lines:
                verdicts = (tuple(verdict.json for verdict in each.found) for each in answered)
                lines.write(*(Line(kind, several) for several in verdicts))
            yield from (Found(kind, [*each.found]) for each in answered)
            yield from (each for each in found if isinstance(each, TooLargeAnswer))


def _graded(engine: Engine, kept: Sequence[Line]) -> Iterator[tuple[str, list[Answer] | str]]:
    tasks = {}
    for kind in engine.kinds:
        firsts = (line.found[0] for line in kept if line.kind == kind)
        done = {(first["solution"], first["op"], first["case"]) for first in firsts}
        tasks[kind] = engine.tasks(kind, done=done)
    yield from engine.run(tasks)


def _sources(engine: Engine) -> Sources:
    digests = {each.name: pair for each, pair in digests_of(engine.job.solutions).items()}
    versions = {kind: found[0].device_info.versions for kind, found in engine.kinds.items()}
    return Sources(digests, engine.job.tier, engine.job.sample, versions)


def _kept(path: Path, sources: Sources) -> list[Line]:
    """Return what interrupted runs of the same sources had found, and remove any other's.

    A kind of device that has since left the cluster keeps its verdicts.

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
    """Return whether both are of the same work, with the same versions on kinds that both have."""
    shared = one.versions.keys() & other.versions.keys()
    same = [(sources.digests, sources.tier, sources.sample) for sources in (one, other)]
    return same[0] == same[1] and all(one.versions[k] == other.versions[k] for k in shared)


def _open(path: Path, sources: Sources) -> jsonl.Writer:
    """Return the writer of the file, which begins a run's part with its sources."""
    lines = jsonl.Writer(path)
    lines.write(sources)
    return lines
