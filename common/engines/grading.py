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
"""A line has the verdicts of one solution on one case, and their basis."""


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
        for result in engine.run(engine.tasks({(each.solution, each.case) for each in kept})):
            if lines and not isinstance(result, str) and result.verdicts:
                found = [verdict.json for verdict in result.verdicts]
                lines.write({"basis": bases[result.solution], "verdicts": found})
            yield result


def _bases(engine: Engine) -> dict[str, str]:
    """Return all that verdicts rest on besides the case, by solution."""
    device = engine.started.device_info
    return {
        solution.name: f"{device.kind} {device.versions} {engine.job.tier} {digests}"
        for solution, digests in digests_of(engine.job.solutions).items()
    }


def _kept(path: Path, engine: Engine, bases: Mapping[str, str]) -> list[CaseResult]:
    """Return the verdicts that the file has on the engine's cases and that rest on the same."""
    kept = []
    for line in jsonl.read(path, _FORMAT):
        first, *_ = verdicts = [Verdict(**fields) for fields in line["verdicts"]]
        same = line["basis"] == bases.get(first.solution)
        if same and first.case in engine.started.cases[first.op]:
            kept.append(CaseResult.of(verdicts, kept=True))
    return kept
