"""The findings of a check as data: what the terminal shows, and `--json` writes."""

from __future__ import annotations

import msgspec

from common.source import Place
from common.spec import Direction, Tier


class Finding(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """One object of `--json`; its field `kind` says which."""

    solution: str
    """The folder and the file, such as `alice/rope`."""


class FailingCases(Finding, frozen=True, kw_only=True, tag="failing"):
    """The failing cases of a solution with the same verdict in the same directions."""

    verdict: str
    directions: tuple[Direction, ...]
    failed: int
    """The number of cases."""
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
    earlier: bool = False
    """Whether the case fails only after others in the same process."""


class Summary(Finding, frozen=True, kw_only=True, tag="summary"):
    """The outcome of a solution on the cases of one tier."""

    tier: Tier
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
    """The number of cases by the kind of a note."""
    configurations: dict[str, str] = {}
    """How many of its configurations each autotuned kernel ran in, such as `5 of 8`."""
    remark: str = ""
    """That it answers no case or few, or needs a GPU."""
    failures: tuple[FailingCases, ...] = ()
    """What to mend, in the order of the verdicts: later ones may follow from the first."""

    @property
    def cases(self) -> int:
        """The number of cases that were run."""
        return self.passed + self.failed + self.unsupported
