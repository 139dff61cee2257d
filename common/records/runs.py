"""What was measured, one line of JSON a row, appended to `results/<device>.jsonl`; no torch here.

A run begins with a line of its own, holds a row for each solution, case and direction, and ends
with a line of its own; a run without its end was interrupted and is gone on with.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common import paths
from common.errors import UserError

SCHEMA = 1
POWER_CAP = "power cap"
Samples = Mapping[str, list[float]]


@dataclass(frozen=True)
class Record:
    """One direction of one case of one solution, on the device that the file is named after."""

    run: str
    solution: str
    peer: bool
    op: str
    case: str
    track: str
    ranked_by: str
    twin: bool
    direction: str
    verdict: str
    reason: str
    error: float | None
    bytes: int
    flops: int
    sources: str
    """Digest of the solution with its helpers."""
    harness: str
    """Digest of the op and of what grades and times."""
    gpu: Samples = field(default_factory=dict)
    """Microseconds: `solution`, `eager` and `copy`, taken in turn; forward, or with backward.
    Where there are any, `dense` products, `backward` alone and the replay of a `graph` of forward.
    """
    host: Samples = field(default_factory=dict)
    """Microseconds: `solution` and `eager`; beside forward, forward with `no_grad`."""
    device_state: Mapping[str, Any] = field(default_factory=dict)
    """While it was timed; see `measure/device.py`. Empty where nobody could tell."""
    tier: str = "board"
    """`board` is ranked, `plot` is drawn."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Unique among the latest rows of a tier."""
        return self.op, self.case, self.direction, self.solution

    @property
    def disturbed(self) -> str:
        """What else than the solution had a part in the times; empty if nothing is known of. The
        power cap is not counted: dense products run at it, and so do those that they are held
        against."""
        others = self.device_state.get("others", 0)
        company = [f"shared with {others} other process{'es' * (others > 1)}"] * bool(others)
        reasons = [word for word in self.device_state.get("throttled", ()) if word != POWER_CAP]
        return ", ".join([*reasons, *company])


@dataclass(frozen=True)
class Run:
    """One invocation of `bench`, or several of them where it was interrupted."""

    run: str
    device: str
    device_name: str
    versions: dict[str, str]
    absent: dict[str, str]
    """The peers that could not take part, and why."""
    selection: str = ""
    """The options that left solutions out; empty if none did."""
    peak: dict[str, Any] = field(default_factory=dict)
    """What the device can do by its datasheet; empty where that is not known."""

    @property
    def whole(self) -> bool:
        """It measured every solution of the ops that it measured."""
        return "--only" not in self.selection


@dataclass
class Results:
    """One file: every run and row in it, in the order of writing."""

    path: Path
    runs: list[Run] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)

    def latest(self, tier: str = "board") -> list[Record]:
        """The last row of each solution, op, case and direction, less the cases that an op no
        longer has: those that its last run over all solutions did not measure, nor a later one."""
        ours = [row for row in self.rows if row.tier == tier]
        order = {run.run: number for number, run in enumerate(self.runs)}
        whole = {run.run for run in self.runs if run.whole and run.run in self.finished}
        last = {row.op: order[row.run] for row in ours if row.run in whole}
        current = {
            (row.op, row.case) for row in ours if order.get(row.run, 0) >= last.get(row.op, 0)
        }
        rows = {row.key: row for row in ours if (row.op, row.case) in current}
        return list(rows.values())

    def of_op(self, op: str | None) -> Results:
        """The rows of one op alone, or all."""
        return replace(self, rows=[row for row in self.rows if op in (None, row.op)])

    @property
    def versions(self) -> dict[str, str]:
        """Of the runs that the board's rows are from; where they differ, the later ones."""
        shown = {row.run for row in self.latest()}
        runs = [run for run in self.runs if run.run in shown]
        return {name: version for run in runs for name, version in run.versions.items()}

    @property
    def timed(self) -> bool:
        return bool(self.runs) and self.runs[-1].device != "cpu"


def read(path: Path) -> Results:
    """The file's records. A last line cut off by a kill is dropped with a notice; any other line
    that is no record of this schema is a UserError."""
    results = Results(path)
    read_lines(path, SCHEMA, functools.partial(_take, results), "bench")
    return results


def read_lines(
    path: Path, schema: int, take: Callable[[str, dict[str, Any]], None], command: str
) -> None:
    """Hand the kind and the fields of each line to `take`, which raises for what is none of its;
    `command` is what writes such a file."""
    if not path.exists():
        return
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise UserError(f"{path}: is no text; remove it and run {command}") from None
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        print(f"study: dropped the last line of {path.name}, cut off in writing", file=sys.stderr)
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            if fields.pop("schema") != schema:
                raise ValueError("another schema")
            take(fields.pop("kind"), fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"is no record of schema {schema} ({error}); remove that line"
            raise UserError(
                f"{path}: line {number} {reason}, or the file, and run {command}"
            ) from None


def _take(results: Results, kind: str, line: dict[str, Any]) -> None:
    if kind == "run":
        run = Run(**line)
        tables = (run.versions, run.absent, run.peak)
        if not all(isinstance(table, dict) for table in tables):
            raise ValueError("versions, absent peers or a peak that are no table")
        results.runs.append(run)
    elif kind == "row":
        results.rows.append(_checked(Record(**line)))
    elif kind == "end":
        results.finished.add(line["run"])
    else:
        raise ValueError(f"kind {kind!r}")


def _checked(row: Record) -> Record:
    """What the board would stumble over later."""
    for samples in (row.gpu, row.host):
        if not all(isinstance(values, list) and values for values in samples.values()):
            raise ValueError("samples that are no list of numbers")
        if samples and not {"solution", "eager"} <= set(samples):
            raise ValueError("samples of the solution or of eager are missing")
    if not isinstance(row.device_state, dict):
        raise ValueError("a device's state that is no table")
    return row


def read_all(folder: Path | None = None) -> list[Results]:
    """Every file with a run in it; what a GPU measured first."""
    files = [read(path) for path in sorted((folder or paths.RESULTS).glob("*.jsonl"))]
    return sorted((f for f in files if f.runs and f.rows), key=lambda f: not f.timed)


class Writer:
    """Appends to one file, each line at once and whole, as long as nobody else writes to it: a
    solution can."""

    def __init__(self, path: Path, schema: int = SCHEMA) -> None:
        self._path, self._schema = path, schema
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)  # what was interrupted is not written later
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another run is writing to {path.name}: wait for it to end") from None
        _cut_torn_line(path)
        self._content = bytearray(path.read_bytes())

    def begin(self, run: Run) -> None:
        self.write("run", asdict(run))

    def rows(self, rows: Iterable[Record]) -> None:
        for row in rows:
            self.write("row", asdict(row))

    def end(self, run: str) -> None:
        self.write("end", {"run": run})

    def write(self, kind: str, fields: Mapping[str, Any]) -> None:
        if self._changed():
            self._put_back()
            name = self._path.name
            raise UserError(
                f"{name} was changed while it was written to: changed back; run it again"
            )
        line = {"schema": self._schema, "kind": kind, **fields}
        text = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        self._content += text
        self._file.write(text)

    def _changed(self) -> bool:
        """Is the file not what was written here, or gone?"""
        try:
            return self._path.read_bytes() != self._content
        except FileNotFoundError:
            return True

    def _put_back(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(self._content)

    def close(self) -> None:
        """Best once the solutions have ended: until then another of them may still write."""
        if self._changed():
            self._put_back()
        os.fsync(self._file.fileno())
        self._file.close()


def _cut_torn_line(path: Path) -> None:
    """Else the next line would be appended to a half-written one."""
    if path.exists() and (raw := path.read_bytes()) and not raw.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(raw.rfind(b"\n") + 1)
