"""What the harness and the processes of solutions say to each other, and the fill bytes.

A line is one struct as JSON; open files may come with it. The fork server answers orders, a
solution's process answers requests.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from typing import Any

import msgspec

Reply = dict[str, Any]
"""What a request returned, with `verdict` and `reason` if it failed."""
ALL_TARGETS = "every"
"""In the place of a target: kernels are compiled whole, for the target that a request names."""

STACK = signal.SIGUSR1
"""The signal at which a solution's process writes its stack to the socket, whatever it is at."""


class Struct(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The content of one line."""


# --- to and from the fork server ------------------------------------------------------------------


class ForkRequest(Struct, tag="fork"):
    """Fork a process that serves the socket which comes with this; answered with Forked.

    `device` is `cpu` or `cuda`. With a target, kernels are compiled for that GPU and not run, or,
    with `counted`, their work is counted under the interpreter; `cache` is the compiler's folder.
    """

    device: str
    target: str = ""
    counted: bool = False
    cache: str = ""


class Reap(Struct, tag="reap"):
    """End a process, and all that processes left behind; answered with Reaped."""

    pid: int


Order = ForkRequest | Reap


class Forked(Struct):
    """The id of a new process."""

    pid: int


class Reaped(Struct):
    """How a process ended, as `os.waitpid` tells it."""

    status: int


# --- to and from a solution's process -------------------------------------------------------------


class TensorSlot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The place of one tensor in an arena: a storage of `nbytes` at `start`, and the view of it."""

    start: int
    nbytes: int
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


class Arguments(Struct):
    """The arguments of a call, with the slots of its tensors."""

    tensors: dict[str, TensorSlot]
    optional: list[str]
    """The tensors that are options."""
    options: dict[str, Any]
    """The others that differ from their default."""
    differentiable: list[str]
    changing: dict[str, int]
    """The inputs whose elements may change places, and how many must stay together."""
    grad_output: TensorSlot
    kept: list[str] = []
    """The inputs that hold what they held in the call before, in the same memory."""


class Result(Struct):
    """A result that was delivered, in the reply to `Forward` and, by name, to `Backward`."""

    shape: list[int]
    dtype: str
    differentiable: bool = False


class Answer(Struct):
    """The answer to any request."""

    token: str
    """The request's, so that a line which the solution writes by itself is found out."""
    reply: Reply
    ended: bool = False
    """Whether the process can answer nothing more."""


class Request(Struct, kw_only=True, tag_field="request"):
    """A request; the function that answers it has its arguments explained."""

    token: str = ""
    """What the answer must repeat."""


class Ticket(Struct):
    """The data by which a process maps memory of the harness, beside the open file on a CPU."""

    nbytes: int
    cuda: tuple[int, bytes, int, int, bytes, int, bytes, bool] | None = None
    """What torch shares of a GPU's storage."""


class Share(Request, tag="share"):
    """Map the memory whose file or handle comes with this, in place of the one before."""

    ticket: Ticket | None


class Load(Request, tag="load"):
    """See `Session.load`."""

    path: str
    op: str
    memory: int | None = None


class Settle(Request, tag="settle"):
    """See `process.settle`."""


class Forward(Request, tag="forward"):
    """See `graded.forward`."""

    call: Arguments
    result: TensorSlot
    poison: float | None
    backwards: bool = False
    attempt: str = ""
    alive: list[str] = []
    setting: str = ""


class Backward(Request, tag="backward"):
    """See `graded.backward`."""

    grad_output: TensorSlot
    results: dict[str, TensorSlot]
    attempt: str = ""


class Deliver(Request, tag="deliver"):
    """See `graded.deliver`."""

    attempt: str
    name: str
    result: TensorSlot


class Conflicts(Request, tag="conflicts"):
    """See `graded.conflicts`."""

    call: Arguments
    grad_output: TensorSlot
    names: list[str]


class BeginTiming(Request, tag="begin_timing"):
    """See `timed.begin_timing`."""

    calls: list[Arguments]
    results: list[TensorSlot]
    backward: bool
    limits: Reply | None = None
    choices: list[Any] | None = None
    keep_other: bool = False


class GetReady(Request, tag="get_ready"):
    """See `timed.get_ready`."""

    name: str
    backward: bool


class GiveBack(Request, tag="give_back"):
    """See `timed.give_back`."""

    backward: bool


class Shifts(Request, tag="shifts"):
    """See `timed.shifts`."""

    backward: bool


class TakeSamples(Request, tag="take_samples"):
    """See `timed.take_samples`."""

    names: list[str]
    clock: str
    rounds: int
    burst: int
    look: int
    backward: bool


class Capture(Request, tag="capture"):
    """See `timed.capture`."""

    backward: bool


class ThroughputRun(Request, tag="throughput_run"):
    """See `timed.throughput_run`."""

    name: str
    rounds: int
    renew: bool
    run: bool
    wait: bool
    low_memory: bool
    backward: bool


class Probe(Request, tag="probe"):
    """See `timed.probe`."""

    clock: str
    rounds: int


class Trace(Request, tag="trace"):
    """See `timed.trace_calls`."""

    call: Arguments
    backward: bool


class Tunable(Request, tag="tunable"):
    """See `tunables.tunable`."""


class Force(Request, tag="force"):
    """See `tunables.force`."""

    choices: list[Any]


class Lookups(Request, tag="lookups"):
    """See `tunables.lookups`."""

    call: Arguments
    choices: list[Any]


class Launches(Request, tag="launches"):
    """See `compiled.launches.launches`."""

    name: str
    case: str


class Count(Request, tag="count"):
    """See `counted.call.count`."""

    case: str


AnyRequest = (
    Share
    | Load
    | Settle
    | Forward
    | Backward
    | Deliver
    | Conflicts
    | BeginTiming
    | GetReady
    | GiveBack
    | Shifts
    | TakeSamples
    | Capture
    | ThroughputRun
    | Probe
    | Trace
    | Tunable
    | Force
    | Lookups
    | Launches
    | Count
)


def send(connection: socket.socket, struct: Struct, fds: Sequence[int] = ()) -> None:
    """Send a struct, with open files if any."""
    line = msgspec.json.encode(struct) + b"\n"
    sent = socket.send_fds(connection, [line], fds)
    if rest := line[sent:]:  # sending nothing fails where the other side has answered and ended
        connection.sendall(rest)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next line with its open files, an empty one once the other side has closed."""
    line, kept = b"", list[int]()
    while not line.endswith(b"\n"):
        chunk, fds, _, _ = socket.recv_fds(connection, 1 << 20, 1)
        if not chunk:
            return b"", []
        line, kept = line + chunk, kept + fds
    return line, kept


# --- the fill bytes -------------------------------------------------------------------------------

OUTPUT = "output"
"""The name of the output among the results; a gradient is named after its argument."""
FIRST_RUN, SECOND_RUN = 0, 1
"""The index of a run in POISONS and in GUARDS."""
POISONS = (float("nan"), 12_345.0)
"""The fill of fresh memory in the first and in the second run, so that an element that was never
written differs between the two."""
GUARDS = (0x45, 0xFF)
"""The fill of guard bands and of the gaps between a view's elements, in the first and in the second
run: bytes of a number, then of NaN, so that a read there shows in the second run alone."""
GARBAGE = 0xA5
"""The fill of a result's memory until the solution's process writes the result."""
