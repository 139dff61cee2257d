"""The possible verdicts in order of precedence, and the verdict of one solution on one case."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import msgspec

from common.errors import Kind, Note
from common.source import Place
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
"""The meaning of each verdict. Of several failures, the first in this order is the verdict."""
FINE = frozenset({"PASSED", "UNSUPPORTED"})
"""The verdicts that are not failures."""
BEFORE_LAUNCH = frozenset({"UNSUPPORTED", "COMPILE_ERROR"})
"""The verdicts of solutions that launched no kernel; compiling for a GPU does not change them."""
ENDED = frozenset({"CRASHED", "TIMEOUT", "TAMPERED"})
"""The verdicts after which a case's further calls are not made; its process has ended or lies."""
ISOLATED_TOO = "also with no other process running"
"""The end of the reason if a SIGKILL recurred while no other process ran."""


class Failure(Exception):
    """A verdict that ends the current request, with its reason and its kind."""

    def __init__(
        self, verdict: str, reason: str, kind: Kind = Kind.NONE, places: tuple[Place, ...] = ()
    ) -> None:
        """Take the verdict, a key of VERDICTS, a one-line reason, and the places that it names."""
        super().__init__(reason)
        self.verdict, self.reason, self.kind, self.places = verdict, reason, kind, places

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Self:
        """Return the failure that a reply describes; see `reply`."""
        kind, places = Kind(reply.get("kind", "")), tuple[Place, ...]()
        with contextlib.suppress(msgspec.ValidationError):  # a solution may have invented them
            places = msgspec.convert(reply.get("places", ()), tuple[Place, ...])
        return cls(str(reply["verdict"]), str(reply.get("reason", "")), kind, places)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a `Verdict` that the failure decides."""
        return {name: getattr(self, name) for name in ("verdict", "reason", "kind", "places")}

    @property
    def reply(self) -> dict[str, Any]:
        """The failure as JSON data, for the reply of a process."""
        fields = self.fields | {"places": [list(place) for place in self.places]}
        return {name: value for name, value in fields.items() if value}


class Difference(msgspec.Struct, frozen=True):
    """The wrong elements of one result."""

    result: str
    """`output`, or the argument whose gradient it is."""
    elements: str
    """The wrong elements in words; empty if only the rms error is too large."""
    wrong: int
    """Their number; 0 likewise."""
    index: tuple[int, ...]
    """The first wrong element."""
    expected: float | None
    """None in JSON for NaN and infinity."""
    got: float | None


class Autotuned(msgspec.Struct):
    """The configurations in which an autotuned kernel ran, in the reply to a call."""

    count: int
    """The number of all configurations."""
    launches: int
    """The launches by the tuner before the launch that counts."""
    values: list[dict[str, bool | int | float | str]]
    """The configurations that ran: the parameters that are not the same in all."""


def merged(several: Iterable[Mapping[str, Autotuned]]) -> dict[str, Autotuned]:
    """Return the configurations of several replies, by kernel."""
    known: dict[str, Autotuned] = {}
    for kernel, new in (item for each in several for item in each.items()):
        old = known.get(kernel, Autotuned(new.count, 0, []))
        values = old.values + [each for each in new.values if each not in old.values]
        known[kernel] = Autotuned(new.count, max(old.launches, new.launches), values)
    return known


def in_words(configurations: Mapping[str, Autotuned]) -> str:
    """Return words such as `_kernel with BLOCK=64, after 2 launches by its tuner`; "" for none."""
    return "; ".join(
        f"{kernel} with {' or '.join(map(text_of, tuned.values))}"
        + f", after {tuned.launches} launch{'es' * (tuned.launches > 1)} by its tuner"
        * bool(tuned.launches)
        for kernel, tuned in configurations.items()
    )


def text_of(values: Mapping[str, Any]) -> str:
    """Return a configuration in words, such as `BLOCK=64 num_warps=4`."""
    return " ".join(f"{name}={value}" for name, value in values.items())


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
    """The solution's error divided by eager's: rms, or the largest error in small tensors."""
    notes: tuple[Note, ...] = ()
    kind: Kind = field(default=Kind.NONE, repr=False)
    places: tuple[Place, ...] = field(default=(), repr=False, compare=False)
    """The places in the solution's folder that the reason names."""
    configurations: Mapping[str, Autotuned] = field(default_factory=dict, compare=False)
    """The configurations in which autotuned kernels ran without a GPU, by kernel."""
    after: tuple[str, ...] | None = field(default=None, repr=False, compare=False)
    """The cases that the process answered before, if the failure depends on earlier calls; empty if
    these calls are of the same case."""
    difference: Difference | None = field(default=None, repr=False, compare=False)
    """The wrong elements of the first result with wrong values."""
    results: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)
    """The first call's wrong results by name, on the host, if they are small and requested."""

    @property
    def tuned(self) -> str:
        """The configurations in words; see `in_words`."""
        return in_words(self.configurations)

    @property
    def fine(self) -> bool:
        """Whether the verdict is not a failure."""
        return self.verdict in FINE
