"""A solution's own process: what a fresh fork sets up, and the requests that it answers.

The process answers the requests of `common/wire.py`, works in memory of the harness, and never
holds an expected result.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType

import msgspec
import torch

from common import wire
from common.sandbox import backend, graded, timed, tunables
from common.sandbox.compiled import launches
from common.sandbox.failures import judge
from common.sandbox.landlock import confine
from common.sandbox.seal import Seal, parts
from common.sandbox.session import Session
from common.wire import Reply

LARGEST_DATA = 8 << 30
"""Bytes of memory that one worker without a GPU may write to."""


def settle(session: Session) -> Reply:
    """Wait for the GPU and answer nothing, in proof that the request before is done with."""
    backend.synchronize()
    return {}


REQUESTS: Mapping[type[wire.Request], Callable[..., Reply]] = MappingProxyType(
    {
        wire.Settle: settle,
        wire.Load: Session.load,
        wire.Forward: graded.forward,
        wire.Backward: graded.backward,
        wire.Deliver: graded.deliver,
        wire.Conflicts: graded.conflicts,
        wire.BeginTiming: timed.begin_timing,
        wire.GetReady: timed.get_ready,
        wire.GiveBack: timed.give_back,
        wire.Shifts: timed.shifts,
        wire.TakeSamples: timed.take_samples,
        wire.Capture: timed.capture,
        wire.ThroughputRun: timed.throughput_run,
        wire.Probe: timed.probe,
        wire.Trace: timed.trace_calls,
        wire.Tunable: tunables.tunable,
        wire.Force: tunables.force,
        wire.Lookups: tunables.lookups,
        wire.Launches: launches.launches,
    }
)
"""The function that answers each request, called with the session and the request's fields.

Only `Share` is not here: it comes with a file descriptor. `Count` has its own modules, which few
processes need.
"""


def become_worker(connection: socket.socket, server: int, wanted: wire.ForkRequest) -> None:
    """Set up a fresh fork of the server with this process id, and serve.

    The process dies with the server, leaves no core, and is confined where the kernel can do so.
    """
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != server:  # it died before that
        return
    with contextlib.suppress(OSError):  # the kernel ends this process first if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    backend.install(wanted)  # which names the cache that may be written to
    confine(libc)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not backend.ON_GPU:  # CUDA reserves more than there is
        resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_DATA, LARGEST_DATA))
    if not backend.ON_GPU and backend.TARGET != wire.ALL_TARGETS:  # no large memory is used
        libc.mallopt(-6, 0xA5)  # M_PERTURB: what no dispatch mode sees is a number too, 0x5A5A...
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    requests = REQUESTS
    if backend.COUNTED:
        from common.sandbox.counted.call import count

        requests = MappingProxyType({**REQUESTS, wire.Count: count})
    serve(connection, requests)


def serve(
    connection: socket.socket, requests: Mapping[type[wire.Request], Callable[..., Reply]]
) -> None:
    """Answer one request after the other until the harness closes the socket."""
    seal = Seal(parts())
    session, check = Session(seal), seal.check  # a solution can replace what the session has
    decode = msgspec.json.Decoder(wire.AnyRequest).decode
    faulthandler.register(wire.STACK, connection)
    _hide()
    while True:
        line, fds = wire.receive(connection)
        if not line:
            return
        connection.sendall(_answer(session, requests, decode(line), fds, check) + b"\n")


def _answer(
    session: Session,
    requests: Mapping[type[wire.Request], Callable[..., Reply]],
    request: wire.Request,
    fds: Sequence[int],
    check: Callable[[], None],
) -> bytes:
    answer = wire.Answer(request.token, {})
    if isinstance(request, wire.Share):
        try:
            given_back = session.share(request.ticket, fds[0] if fds else None)
            answer.reply = {"given_back": given_back}
        except (OSError, RuntimeError) as error:  # the GPU has no memory left for its context, say
            answer.reply, answer.ended = judge(error), True
        return msgspec.json.encode(answer)
    fields = msgspec.structs.asdict(request)
    del fields["token"]
    try:
        try:
            answer.reply = requests[type(request)](session, **fields)
        finally:
            check()
        return msgspec.json.encode(answer)
    except BaseException as error:  # SystemExit among them: a solution may not end the process
        answer.reply, answer.ended = judge(error), _context_is_lost()
        return msgspec.json.encode(answer)


def _context_is_lost() -> bool:
    """Return whether an illegal address has made the GPU unusable for this process."""
    try:
        backend.synchronize()
    except RuntimeError:
        return True
    return False


def _hide() -> None:
    """Forget the harness's modules: a solution that imports one gets a copy that nobody uses."""
    for name in [module for module in sys.modules if module.partition(".")[0] == "common"]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
