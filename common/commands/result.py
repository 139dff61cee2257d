"""What commands find, as data that `--json` writes: docs/json.md describes each kind."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from common import paths
from common.commands import options as shared
from common.errors import Note
from common.records.lines import Record
from common.source import Place
from common.spec import Direction, Tier
from common.verdicts import Autotuned, Difference, Verdict


class Item(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """One object of `--json`; its field `kind` says which."""

    solution: str
    """The folder and the file, such as `alice/rope`."""


class Listed(Item, frozen=True, kw_only=True, tag="solution"):
    """A solution, or a peer."""

    op: str
    peer: bool
    note: str
    """The first line of its docstring."""


class Judged(Item, frozen=True, kw_only=True, tag="verdict"):
    """The verdict of one direction of a case."""

    op: str
    case: str
    direction: Direction
    verdict: str
    reason: str
    places: tuple[Place, ...] = ()
    """The places in the solution's source that the reason names: file, line and expression."""
    difference: Difference | None = None
    """The wrong elements, if values are wrong."""
    error: float | None = None
    """The error of a right result, in units of eager's."""
    notes: tuple[Note, ...] = ()
    configurations: dict[str, Autotuned] = {}
    """The configurations in which autotuned kernels ran without a GPU."""

    @classmethod
    def of(cls, verdict: Verdict) -> Judged:
        """Return the part of a verdict that is no concern of the harness alone."""
        return cls(**{name: getattr(verdict, name) for name in cls.__struct_fields__})


class FailingCases(Item, frozen=True, kw_only=True, tag="failing"):
    """The failing cases of a solution with the same verdict in the same directions."""

    verdict: str
    directions: tuple[Direction, ...]
    failed: int
    """The number of cases."""
    again: int = 0
    """How many of them are in a group before this one too."""
    case: str
    """The smallest of them."""
    reason: str
    """The reason of the verdict in this case."""
    place: Place | None = None
    """The place in the solution's source that the reason names."""
    property: str = ""
    """What separates these cases from the passing ones; empty if unknown."""
    cause: str = ""
    """The known mistakes that give the wrong values; empty if there is none, or more than two."""
    hint: str = ""
    """Where to look; of some ops and mistakes alone."""
    earlier: bool = False
    """Whether the case fails only after others in the same process."""


class Summary(Item, frozen=True, kw_only=True, tag="summary"):
    """The outcome of a solution on the cases of one tier."""

    tier: Tier
    stands_for: str = ""
    """The case of `--case` where there is no GPU and a small twin of it was graded."""
    passed: int
    """The number of cases with a right direction and no failure."""
    forward_alone: int = 0
    """The number of those without a backward."""
    failed: int
    unsupported: int
    """The number of cases of which no direction is supported."""
    left_out: int = 0
    """The number of cases that were not run."""
    reasons: dict[str, int] = {}
    """The number of cases by the reason why a direction is not supported."""
    notes: dict[str, int] = {}
    """The number of cases by the kind of a note, a key of NOTES."""
    tried: dict[str, int] = {}
    """The number of cases in which a kind of DRAWN was looked for."""
    configurations: dict[str, str] = {}
    """How many of its configurations each autotuned kernel ran in, such as `5 of 8`."""
    remark: str = ""
    """That it answers no case, or needs a GPU."""
    failures: tuple[FailingCases, ...] = ()
    """What to mend, in the order of the verdicts: later ones may follow from the first."""


class Placed(Item, frozen=True, kw_only=True, tag="place"):
    """A solution in a track of a device's board; further fields are those of its columns."""

    device: str
    op: str
    track: str
    peer: bool
    covered: int
    """The cases, forward and backward apart, that pass."""
    cells: int
    """The cases of the track, likewise."""
    columns: dict[str, dict[str, float | None]] = {}
    """By column: `place`, `share`, `times_eager`, `low`, `high` and `runs`."""


Anything = Listed | Judged | Summary | Placed | Record
"""What `--json` writes; rows are those of a record."""


@contextlib.contextmanager
def output(target: Path | None) -> Iterator[list[Anything]]:
    """Yield a list to which a command adds objects; in the end, write it to the file.

    If it is `-`, write an object a line to stdout, and what the command prints to stderr.
    """
    written, stdout = list[Anything](), sys.stdout
    if str(target) != "-":
        path = target and shared.writable(target)
        yield written
        if path:
            text = msgspec.json.format(msgspec.json.encode(written), indent=1)
            paths.replace(path, text + b"\n")
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield written
    for each in written:
        stdout.write(msgspec.json.encode(each).decode() + "\n")
