"""The messages between the harness and its processes, and the fill bytes of memory.

A message is one struct as a line of JSON, sometimes with file descriptors. The fork server answers
orders, and a solution's process answers requests; those for times are in `timed_requests.py`.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Reply = dict[str, Any]
"""The result of a request, with `verdict` and `reason` if the request failed."""
Run = Literal[0, 1]
"""FIRST_RUN or SECOND_RUN, which differ in the fill of fresh memory (POISONS) and of guard bands
(GUARDS); in the second, the interpreter runs a launch's programs from the last to the first. Calls
on other inputs have one of these numbers too, so that the number does not tell the inputs."""
FIRST_RUN: Run = 0
SECOND_RUN: Run = 1
Double = Literal["", "quadratic", "constant"]
"""The loss of a double backward: quadratic in the output, or linear, with a constant upstream
gradient; see `gradients.second_derivatives`."""
LAUNCHED = "*launched"
"""The key of `Launched` in the reply to `Forward` and to `Backward`; no argument has this name."""

STAND_IN = "sm_90"
"""The target that stands for the GPU where none is: compute capability 9.0, an H100 or H200."""

STACK = signal.SIGUSR1
"""The signal on which a solution's process writes its stack to a file; see `ForkServer.fork`."""


class Struct(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The content of one line."""


# --- to and from the fork server ------------------------------------------------------------------


class ForkRequest(Struct, tag="fork"):
    """Fork a process that serves the socket sent with this message; answered with its id.

    `device` is `cpu` or `cuda`. If `target` is set, kernels are compiled for that GPU and not run,
    with `full` to the end and not only as far as a verdict needs; with `counted`, their work is
    counted in the interpreter. `cache` is the compiler's folder.
    """

    device: str
    target: str = ""
    counted: bool = False
    cache: str = ""
    full: bool = False


class Reap(Struct, tag="reap"):
    """End a process, and those that earlier ones left behind; answered with its exit status."""

    pid: int


Order = ForkRequest | Reap


class Done(Struct):
    """The answer to an order."""

    number: int
    """The id of a new process, or the exit status of an ended process, from `os.waitpid`."""


# --- to and from a solution's process -------------------------------------------------------------


class TensorSlot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The location of a tensor in an arena: a storage of `nbytes` at `start`, and a view of it."""

    start: int
    nbytes: int
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


class ConfigurationDraw(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The draw of one case for the configurations of autotuned kernels."""

    seed: int
    """The seed of the run for the solution."""
    position: int | None
    """The case's position among the cases of the run; None for the first configuration."""
    launches: int = 0
    """The launches with which a tuner tries a kernel before the launch that counts."""


UNDRAWN = ConfigurationDraw(0, None)
"""The draw by which an autotuned kernel takes its first configuration after pruning."""


class Arguments(Struct):
    """The arguments of a call, with the slots of its tensors."""

    tensors: dict[str, TensorSlot]
    optional: list[str]
    """The names of the tensors that are options."""
    options: dict[str, Any]
    """The other options with a non-default value."""
    differentiable: list[str]
    changing: dict[str, int]
    """The inputs whose elements may be permuted, and the size of the blocks that stay intact."""
    upstream: dict[str, TensorSlot]
    """The upstream gradient of each output, in their order; see `spec.upstream_of`."""
    kept: list[str] = []
    """The inputs that are the previous call's tensors, unchanged."""
    written: list[str] = []
    """The inputs that are the previous call's tensors, with other values written into them."""
    freed: list[str] = []
    """The inputs whose tensors of the previous call are freed; others lie at their addresses."""

    @property
    def slots(self) -> dict[str, TensorSlot]:
        """Return the slots of the tensors and of the upstream gradients."""
        return {**self.tensors, **self.upstream}


class Result(Struct):
    """A delivered result: by name, the reply to `Forward` and to `Backward`."""

    shape: list[int]
    dtype: str
    differentiable: bool = False


class Launched(Struct):
    """The launches of a graded call."""

    count: int
    caught: Reply
    """The verdict and the reason of a launch's exception that the solution caught; or empty."""


class Answer(Struct):
    """The answer to any request."""

    token: str
    """The request's token, so that a line forged by the solution is detected."""
    reply: Reply
    ended: bool = False
    """Whether the process can answer no further request."""


class Request(Struct, kw_only=True, tag_field="request"):
    """A request; the function whose parameter it is answers it. See `sandbox.process.answering`."""

    token: str = ""
    """The token that the answer must repeat."""


class Ticket(Struct):
    """The data with which a process maps the harness's memory; on a CPU a file comes with it."""

    nbytes: int
    cuda: tuple[int, bytes, int, int, bytes, int, bytes, bool] | None = None
    """The result of `_share_cuda_` of the GPU's storage."""


class Share(Request, tag="share"):
    """Unmap the shared memory, and map the memory of the ticket, if given."""

    ticket: Ticket | None


class Load(Request, tag="load"):
    """Import a solution's file."""

    path: str
    op: str


class Forward(Request, tag="forward"):
    """Call the solution once, and copy its outputs into their slots."""

    call: Arguments
    results: dict[str, TensorSlot]
    """The slot of each output, by its name, in their order."""
    run: Run = FIRST_RUN
    attempt: str = ""
    """The name under which the session keeps the call for `Backward` and `Deliver`."""
    alive: list[str] = []
    """The earlier attempts that the session still keeps."""
    setting: str = ""
    """The call's stream or mode of autograd; see `grading.call_plan.Mode`."""
    configurations: ConfigurationDraw = UNDRAWN
    conflicts: bool = False
    """Whether to look, in the interpreter, for two programs that conflict, in backward too."""


class Backward(Request, tag="backward"):
    """Compute the gradients of a call, or their gradients, and copy them into their slots."""

    results: dict[str, TensorSlot]
    """The slot of each gradient, by input."""
    attempt: str = ""
    keep: bool = False
    """Whether to keep the graph, so that the request can be repeated."""
    double: Double = ""
    """Compute second derivatives instead; see `Double`."""


class Deliver(Request, tag="deliver"):
    """Copy the current value of an earlier call's result into its slot again."""

    attempt: str
    name: str
    result: TensorSlot


class Stored(Request, tag="stored"):
    """Return as `place` where a call's kernels stored an element; see `explanation.Memory`."""

    attempt: str
    name: str
    """The result; "" for any input."""
    index: tuple[int, ...]
    bits: int | None
    """The element as an integer; None if no store of itself is looked for, but the nearest one."""


class AtFullShape(Request, tag="at_full_shape"):
    """Call a case of the op at its full shape, where large tensors have no data.

    A process with a target compiles the kernels. A process that counts counts the work instead, or
    looks for offsets that wrap if the case is the op's large case.
    """

    case: dict[str, Any]
    """The case's parameters; see `Case.params`."""
    configurations: ConfigurationDraw = UNDRAWN


class Tune(Request, tag="tune"):
    """Force configurations of a solution's tuned kernels from now on."""

    choices: list[Any]
    """Items `[kernel, widths, dtype, tokens, configuration]`, for example
    `["linear", [1024, 4096], "bfloat16", 4096, {"block": 64}]`. For any other shape, a kernel uses
    its default."""


def send(connection: socket.socket, struct: Struct, fds: Sequence[int] = ()) -> None:
    """Send a struct, with file descriptors if any."""
    line = msgspec.json.encode(struct) + b"\n"
    sent = socket.send_fds(connection, [line], fds)
    if rest := line[sent:]:  # sending no bytes fails if the other side has answered and ended
        connection.sendall(rest)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next line with its file descriptors; an empty line if the connection is closed."""
    line, received = b"", list[int]()
    while not line.endswith(b"\n"):
        chunk, fds, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        if not chunk:
            return b"", []
        line, received = line + chunk, received + fds
    return line, received


# --- the fill bytes -------------------------------------------------------------------------------

POISONS = (float("nan"), 12_345.0)
"""The fill of fresh memory in the first and in the second run: an unwritten element differs between
the two runs."""
GUARDS = (0x45, 0xFF)
"""The fill of guard bands and of the gaps between a view's elements, in the first and in the second
run: first the bytes of a number, then of NaN, so that a read there changes the second result."""
GARBAGE = 0xA5
"""The fill of a result's memory until the solution's process writes the result."""
