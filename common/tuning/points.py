"""The trials of `tune`, one per line of JSON, and the configurations chosen from them; no torch.

`contributors/<handle>/configs/<device>.jsonl` stores every trial. The solution reads
`<device>.json` in the same folder, which depends only on the trials: the same trials produce the
same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from common import files
from common.records.jsonl import Format, Writer, read
from common.spec import Direction

SCHEMA: Literal[1] = 1
Config = dict[str, Any]
Kind = Literal["timed", "graded"]


@dataclass(frozen=True, order=True)
class Shape:
    """The sizes and dtype of a kernel's call, for which the best configuration is searched."""

    kernel: str
    widths: tuple[int, ...]
    dtype: str
    tokens: int

    def __str__(self) -> str:
        """Return a description such as `up, 2048 tokens of 1024 x 2048 bfloat16`."""
        widths = " x ".join(map(str, self.widths))
        return f"{self.kernel}, {self.tokens} tokens of {widths} {self.dtype}"


@dataclass(frozen=True)
class TuningTask:
    """A shape, and the call that is timed for it: a solution on one case and direction."""

    solution: str
    shape: Shape
    case: str
    direction: Direction


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of timing or grading one configuration on one task: a line of the file.

    Only the fastest configurations are graded. The fields are in the order of the line.
    """

    schema: Literal[1]
    kind: Kind
    config: Config
    sources: str
    """The digest of the solution and its helpers, without configurations."""
    versions: dict[str, str]
    verdict: str = "PASSED"
    reason: str = ""
    microseconds: float | None = None
    """The GPU time of the whole call, if the trial was timed and passed."""
    solution: str
    case: str
    direction: Direction
    kernel: str
    widths: tuple[int, ...]
    dtype: str
    tokens: int

    def __post_init__(self) -> None:
        """Raise ValueError if a timed, passed trial has no time, or another trial has one."""
        timed = self.kind == "timed" and self.verdict == "PASSED"
        if timed != (self.microseconds is not None):
            raise ValueError(f"kind {self.kind!r} with {self.microseconds!r} microseconds")

    @property
    def shape(self) -> Shape:
        """The shape for which the configuration was tried."""
        return Shape(self.kernel, self.widths, self.dtype, self.tokens)

    @property
    def task(self) -> TuningTask:
        """The task on which the configuration was tried."""
        return TuningTask(self.solution, self.shape, self.case, self.direction)


FORMAT = Format(msgspec.json.Decoder(Trial), SCHEMA, "tune")
Key = tuple[Kind, TuningTask, str]


def _key(kind: Kind, task: TuningTask, config: Config) -> Key:
    return kind, task, json.dumps(config, sort_keys=True)


class Trials:
    """The valid trials of one folder on one device, and the file that stores them."""

    def __init__(
        self,
        path: Path,
        device: Mapping[str, Any],
        sources: Mapping[str, str],
        versions: Mapping[str, str],
    ) -> None:
        """Read the file, and open it for writing.

        Trials with other digests or versions stay in the file but are ignored.

        Args:
            path: The file of trials.
            device: The fields that identify the device: torch's name for it as `device` and, on a
                GPU, `compute_capability` and `multiprocessors`, such as "9.0" and 132.
            sources: The current digest of each solution of the folder.
            versions: The current versions of Python and the libraries.

        Raises:
            UserError: A line is no valid trial, or another search is writing to the file.
        """
        self.path, self.device = path, dict(device)
        self.sources, self.versions = sources, dict(versions)
        self.stale: set[str] = set()
        """The solutions that have only ignored trials."""
        self._trials: dict[Key, Trial] = {}
        for trial in read(path, FORMAT):
            self._include(trial)
        self.stale -= {trial.solution for trial in self._trials.values()}
        self._writer = Writer(path)

    def _include(self, trial: Trial) -> None:
        current = self.sources.get(trial.solution), self.versions
        if (trial.sources, trial.versions) == current:
            self._trials.setdefault(_key(trial.kind, trial.task, trial.config), trial)
        elif trial.solution in self.sources:
            self.stale.add(trial.solution)

    def find(self, kind: Kind, task: TuningTask, config: Config) -> Trial | None:
        """Return the trial of a configuration on a task, or None if there is none."""
        return self._trials.get(_key(kind, task, config))

    def add(self, kind: Kind, task: TuningTask, config: Config, **result: Any) -> Trial:
        """Store a trial, also on disk, and return it."""
        trial = Trial(
            schema=SCHEMA,
            kind=kind,
            config=config,
            sources=self.sources[task.solution],
            versions=self.versions,
            **result,
            solution=task.solution,
            case=task.case,
            direction=task.direction,
            **vars(task.shape),
        )
        self._writer.write(trial)
        self._trials[_key(kind, task, config)] = trial
        return trial

    def winners(self) -> dict[Shape, Trial]:
        """Return, by shape, the timed trial of the configuration that passed the grader."""
        winners: dict[Shape, Trial] = {}
        for trial in self._trials.values():
            timed = self.find("timed", trial.task, trial.config)
            if timed and (trial.kind, trial.verdict) == ("graded", "PASSED"):
                winners.setdefault(trial.shape, timed)
        return winners

    def write(self) -> None:
        """Replace the file of configurations atomically."""
        text = render(self.device, self.versions, self.winners())
        files.replace(self.path.with_suffix(".json"), text.encode())

    def close(self) -> None:
        """Close the file of trials."""
        self._writer.close()


def fastest(trials: Iterable[Trial]) -> Trial | None:
    """Return the first trial within 1 % of the fastest, or None if no trial has a time.

    The clock cannot distinguish times within 1 %, and the choice should be the same in every run:
    of 100.0, 99.5 and 98.0 us it is the third, of 100.0, 99.5 and 99.2 us the first.
    """
    timed = [(trial.microseconds, trial) for trial in trials if trial.microseconds is not None]
    least = min((microseconds for microseconds, _ in timed), default=0.0)
    return next((trial for microseconds, trial in timed if microseconds <= 1.01 * least), None)


def render(
    device: Mapping[str, Any], versions: Mapping[str, str], winners: Mapping[Shape, Trial]
) -> str:
    """Return the text of the file that a solution reads: one entry per line, sorted."""
    kernels: dict[str, list[str]] = {}
    for shape, trial in sorted(winners.items()):
        entry = {
            "tokens": shape.tokens,
            "widths": shape.widths,
            "dtype": shape.dtype,
            "config": trial.config,
            "microseconds": trial.microseconds,
        }
        kernels.setdefault(shape.kernel, []).append(f"      {json.dumps(entry)}")
    lists = (
        f"    {json.dumps(kernel)}: [\n" + ",\n".join(entries) + "\n    ]"
        for kernel, entries in kernels.items()
    )
    return "\n".join([
        "{",
        f'  "schema": {SCHEMA},',
        *(f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in device.items()),
        f'  "versions": {json.dumps(dict(versions), sort_keys=True)},',
        '  "kernels": {\n' + ",\n".join(lists) + "\n  }",
        "}\n",
    ])  # fmt: skip
