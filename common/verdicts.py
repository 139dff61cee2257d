"""The possible verdicts in order of cause, and the verdict of one solution on one case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from common.errors import Kind
from common.spec import Direction

if TYPE_CHECKING:
    import torch


VERDICTS = {
    "PASSED": "the result is right, twice, bit for bit the same",
    "UNSUPPORTED": "the solution says that it does not support the case",
    "COMPILE_ERROR": "it does not import, has another signature, or a kernel does not compile",
    "RUNTIME_ERROR": "the call raised an exception",
    "CRASHED": "the solution's process ended",
    "TIMEOUT": "the solution's process gave no answer in time",
    "TAMPERED": "the clock, the checker or torch was changed, or a result was replayed",
    "IMPOSSIBLE_SPEED": "the time is below what the device can do",
    "OUT_OF_BOUNDS": "an access left its tensor",
    "MUTATED_INPUT": "an argument changed",
    "UNWRITTEN_OUTPUT": "part of the result was never written",
    "INCORRECT_SHAPE": "a result has another shape",
    "INCORRECT_DTYPE": "a result has another dtype",
    "INCORRECT_NUMERICAL": "a value is outside of the numeric rule",
    "NONDETERMINISTIC": "two runs on the same inputs differ",
}
"""Each verdict with its meaning. Of several failures, the first in this order is the verdict."""
FINE = frozenset({"PASSED", "UNSUPPORTED"})
"""The verdicts that are no failure."""
BEFORE_LAUNCH = frozenset({"UNSUPPORTED", "COMPILE_ERROR"})
"""The verdicts of solutions of which no kernel ran: compiling for a GPU does not change them."""
ENDED = frozenset({"CRASHED", "TIMEOUT", "TAMPERED"})
"""The verdicts after which the process is unusable: the next case needs a new one."""
ISOLATED_TOO = "also with nothing beside it"
"""The end of the reason of a SIGKILL that came again while nothing else ran."""


class Failure(Exception):
    """A verdict that ends the current request, with its reason and its kind."""

    def __init__(self, verdict: str, reason: str, kind: Kind = Kind.NONE) -> None:
        """Keep the verdict, one of VERDICTS, and one line of reason."""
        super().__init__(reason)
        self.verdict, self.reason, self.kind = verdict, reason, kind

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Self:
        """Return the failure in a reply; see `reply`."""
        kind = Kind(reply.get("kind", ""))
        return cls(str(reply["verdict"]), str(reply.get("reason", "")), kind)

    @property
    def reply(self) -> dict[str, Any]:
        """The failure as JSON data, for the reply of a process."""
        reply = {"verdict": self.verdict, "reason": self.reason}
        return {**reply, "kind": self.kind} if self.kind else reply


WRONG, SOME, RIGHT = "█▒·"
"""The marks of a cell whose elements are all wrong, some of them, or all right."""


@dataclass(frozen=True)
class Picture:
    """The wrong elements of one result, as a grid of cells over two of its dimensions."""

    rows: str
    """The name of one index of the first dimension, empty where the grid is a single row."""
    columns: str
    block: tuple[int, int]
    """The indices of each dimension in one cell."""
    cells: tuple[str, ...]
    """The marks of each row."""
    others: tuple[str, ...]
    """The names of the other dimensions; a cell sums over all of them."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of one solution on one direction of one case."""

    solution: str
    op: str
    case: str
    direction: Direction
    verdict: str
    reason: str = ""
    error: float | None = None
    """The solution's error in units of eager's own: rms, or the largest one on small tensors."""
    notes: tuple[str, ...] = ()
    """Lines without influence on the verdict, such as a further mode that is not supported."""
    kind: Kind = field(default=Kind.NONE, repr=False)
    picture: Picture | None = field(default=None, repr=False)
    """The wrong elements, where some are wrong and not all."""
    plan: str = field(default="", repr=False, compare=False)
    """The requests made, in a few lines, where the verdict is a failure."""
    results: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)
    """The first call's wrong results by name, on the host, if they are small and were asked for."""

    @property
    def json(self) -> dict[str, Any]:
        """The verdict as JSON data, without the fields for the harness and the terminal."""
        internal = {"kind", "picture", "plan", "results"}
        return {name: value for name, value in vars(self).items() if name not in internal}

    @property
    def ran_out(self) -> bool:
        """Whether the solution failed because the GPU's memory ran out."""
        return self.verdict == "RUNTIME_ERROR" and self.kind is Kind.OUT_OF_MEMORY

    @property
    def killed(self) -> bool:
        """Whether a SIGKILL of unknown origin ended the process while others ran."""
        return self.verdict == "CRASHED" and self.kind is Kind.KILLED

    @property
    def fine(self) -> bool:
        """Whether the verdict is not a failure."""
        return self.verdict in FINE
