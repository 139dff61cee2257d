"""Run `grade` on an engine's devices, and continue from the verdicts that a file keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from common.engines.engine import CaseResult, Engine, Planned
from common.measure.machine import digests_of
from common.records import jsonl
from common.verdicts import Verdict

_FORMAT = jsonl.Format(msgspec.json.Decoder(dict[str, Any]), 1, "grade")
"""A line has the verdicts of one solution on one case, the kind of device, and their basis."""


def part_of(target: Path) -> Path:
    """Return the path of the partial verdicts: `verdicts.json.part` for `verdicts.json`."""
    return target.with_name(target.name + ".part")


def grade_all(engine: Engine, target: Path | None) -> Generator[Planned | CaseResult | str]:
    """Yield the number of cases, then all results, first those of an interrupted run.

    A string is a message for the user.

    Args:
        engine: The devices, with the job.
        target: The file that the caller writes the verdicts to. Until the caller removes it, a file
            next to it keeps the partial verdicts as JSON lines.

    Raises:
        UserError: Another run is writing, or no device is left.
    """
    with contextlib.ExitStack() as files, engine:
        bases, kept, lines = _bases(engine), list[CaseResult](), None
        if target:
            kept = _kept(part_of(target), engine, bases)
            lines = files.enter_context(contextlib.closing(jsonl.Writer(part_of(target))))
        yield Planned(engine.count)
        yield from engine.notes
        if kept:
            yield f"went on with {len(kept)} graded cases"
            yield from kept
        tasks = []
        for kind in engine.kinds:
            done = {(result.solution, result.case) for result in kept if result.kind == kind}
            tasks += engine.tasks(kind, done=done)
        for result in engine.run(tasks):
            if lines and not isinstance(result, str) and result.verdicts:
                found = [verdict.json for verdict in result.verdicts]
                basis = bases[result.kind, result.solution]
                lines.write({"kind": result.kind, "basis": basis, "verdicts": found})
            yield result


def _bases(engine: Engine) -> dict[tuple[str, str], str]:
    """Return all that verdicts rest on besides the case, by kind of device and solution."""
    return {
        (kind, solution.name): f"{first.device_info.versions} {engine.job.tier} {digests}"
        for kind, first in engine.kinds.items()
        for solution, digests in digests_of(engine.job.solutions).items()
    }


def _kept(path: Path, engine: Engine, bases: Mapping[tuple[str, str], str]) -> list[CaseResult]:
    """Return the verdicts that the file has on the engine's cases and that rest on the same."""
    kept = []
    for line in jsonl.read(path, _FORMAT):
        kind, verdicts = line["kind"], tuple(Verdict(**fields) for fields in line["verdicts"])
        first = verdicts[0]
        if line["basis"] != bases.get((kind, first.solution)):
            continue
        if first.case in engine.kinds[kind].cases[first.op]:
            kept.append(CaseResult.of(kind, verdicts, kept=True))
    return kept
