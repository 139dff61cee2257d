"""What `tune` measured, one line of JSON a point, and the configurations drawn from it; no torch.

`contributors/<handle>/configs/<device>.jsonl` keeps every point. `<device>.json` beside it, which
the solution reads, follows from the points alone: the same points make the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from common.records import jsonl
from common.records.jsonl import Writer
from common.spec import Direction

SCHEMA = 1
Config = dict[str, Any]
KINDS = ("timed", "graded")


@dataclass(frozen=True, order=True)
class Shape:
    """What a kernel was asked for: the best configuration is one for each of these."""

    kernel: str
    widths: tuple[int, ...]
    dtype: str
    tokens: int

    def __str__(self) -> str:
        widths = " x ".join(map(str, self.widths))
        return f"{self.kernel}, {self.tokens} tokens of {widths} {self.dtype}"


@dataclass(frozen=True)
class TuningTask:
    """Where a shape is measured: the case whose call asks for it, and how much of that call."""

    solution: str
    shape: Shape
    case: str
    direction: Direction


@dataclass(frozen=True)
class Trial:
    """One configuration at one spot: timed, or graded once it was the fastest."""

    kind: str
    spot: TuningTask
    config: Config
    sources: str
    """Digest of the solution with its helpers, without configurations."""
    versions: Mapping[str, str]
    verdict: str = "PASSED"
    reason: str = ""
    microseconds: float | None = None
    """Of the whole call, on the GPU; only where it was timed and nothing failed."""

    def line(self) -> dict[str, Any]:
        """Flat, as it stands in the file."""
        fields = asdict(self) | asdict(self.spot) | asdict(self.spot.shape)
        return {name: value for name, value in fields.items() if name not in NESTED}

    @classmethod
    def of(cls, kind: str, line: dict[str, Any]) -> Trial:
        """From what `line` made; raises for anything else."""
        names = ("kernel", "tokens", "dtype")
        shape = Shape(widths=tuple(line.pop("widths")), **{name: line.pop(name) for name in names})
        names = ("solution", "case", "direction")
        spot = TuningTask(shape=shape, **{name: line.pop(name) for name in names})
        point = cls(kind=kind, spot=spot, **line)
        timed = isinstance(point.microseconds, int | float)
        if kind not in KINDS or timed != (kind == "timed" and point.verdict == "PASSED"):
            raise ValueError(f"kind {kind!r} with {point.microseconds!r} microseconds")
        if not (isinstance(point.config, dict) and isinstance(shape.tokens, int)):
            raise ValueError("a configuration or a number of tokens that is none")
        return point


NESTED = ("kind", "spot", "shape")


class Trials:
    """The points of one folder on one device that still hold, and the file that keeps them."""

    def __init__(
        self, path: Path, device: str, sources: Mapping[str, str], versions: Mapping[str, str]
    ) -> None:
        """`sources` are the digests of the folder's solutions now: what was measured of others, or
        with other versions, stays in the file and counts no more."""
        self.path, self.device, self.sources, self.versions = path, device, sources, versions
        self.stale: set[str] = set()
        """Solutions of which nothing that was measured counts any more."""
        self._points: dict[tuple[str, TuningTask, str], Trial] = {}
        format = jsonl.Format(msgspec.json.Decoder(dict[str, Any]), SCHEMA, "tune")
        for number, line in enumerate(jsonl.read(path, format), start=1):
            try:
                if line.pop("schema") != SCHEMA:
                    raise ValueError("another schema")
                self._take(line.pop("kind"), line)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise format.invalid(path, number, str(error)) from None
        self.stale -= {point.spot.solution for point in self._points.values()}
        self._writer = Writer(path)

    def _take(self, kind: str, line: dict[str, Any]) -> None:
        point = Trial.of(kind, line)
        solution = point.spot.solution
        if (point.sources, point.versions) == (self.sources.get(solution), self.versions):
            self._points.setdefault(_key(kind, point.spot, point.config), point)
        elif solution in self.sources:
            self.stale.add(solution)

    def find(self, kind: str, spot: TuningTask, config: Config) -> Trial | None:
        return self._points.get(_key(kind, spot, config))

    def add(self, kind: str, spot: TuningTask, config: Config, **found: Any) -> Trial:
        """Keep a point, on disk before anything else is measured."""
        sources = self.sources[spot.solution]
        point = Trial(kind, spot, config, sources, self.versions, **found)
        self._writer.write({"schema": SCHEMA, "kind": kind, **point.line()})
        self._points[_key(kind, spot, config)] = point
        return point

    def winners(self) -> dict[Shape, Trial]:
        """The configuration of each shape: the fastest that was graded and passed."""
        graded = [point for point in self._points.values() if point.kind == "graded"]
        winners: dict[Shape, Trial] = {}
        for point in graded:
            timed = self.find("timed", point.spot, point.config)
            if point.verdict == "PASSED" and timed:
                winners.setdefault(point.spot.shape, timed)
        return winners

    def write(self) -> None:
        """Write the configurations, whole or not at all."""
        target = self.path.with_suffix(".json")
        fresh = target.with_suffix(".tmp")
        fresh.write_text(render(self.device, self.versions, self.winners()))
        os.replace(fresh, target)

    def close(self) -> None:
        self._writer.close()


def _key(kind: str, spot: TuningTask, config: Config) -> tuple[str, TuningTask, str]:
    return kind, spot, json.dumps(config, sort_keys=True)


def fastest(points: Iterable[Trial]) -> Trial | None:
    """Of the points in the order of declaration, the first that is within a hundredth of the
    fastest: what is as fast for all that the clock can tell should not change from run to run."""
    timed = [(point.microseconds, point) for point in points if point.microseconds is not None]
    least = min((microseconds for microseconds, _ in timed), default=0.0)
    return next((point for microseconds, point in timed if microseconds <= 1.01 * least), None)


def render(device: str, versions: Mapping[str, str], winners: Mapping[Shape, Trial]) -> str:
    """The file that a solution reads: a line an entry, sorted."""
    kernels: dict[str, list[str]] = {}
    for shape, point in sorted(winners.items()):
        entry = {
            "tokens": shape.tokens,
            "widths": shape.widths,
            "dtype": shape.dtype,
            "config": point.config,
            "microseconds": point.microseconds,
        }
        kernels.setdefault(shape.kernel, []).append(f"      {json.dumps(entry)}")
    lists = (
        f"    {json.dumps(kernel)}: [\n" + ",\n".join(entries) + "\n    ]"
        for kernel, entries in kernels.items()
    )
    return "\n".join([
        "{",
        f'  "schema": {SCHEMA},',
        f'  "device": {json.dumps(device)},',
        f'  "versions": {json.dumps(dict(versions), sort_keys=True)},',
        '  "kernels": {\n' + ",\n".join(lists) + "\n  }",
        "}\n",
    ])  # fmt: skip
