"""A solution's own process: what a fresh fork sets up, and the requests that it answers.

The process answers the requests of `common/wire.py`, works in memory of the harness, and never
holds an expected result.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import json
import operator
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import msgspec
import torch
import triton
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from common import wire
from common.sandbox import backend, graded, timed, tunables
from common.sandbox.compiled import launches
from common.sandbox.failures import judge
from common.sandbox.instances import Held, hold
from common.sandbox.landlock import confine
from common.sandbox.seal import Seal, roots
from common.sandbox.session import Session
from common.wire import Reply

LARGEST_DATA = 8 << 30
"""Bytes of memory that one worker without a GPU may write to."""
SAMPLING = (
    *("builtins", "time", "torch.cuda", "torch._utils"),
    *(f"common.sandbox.{name}" for name in ("backend", "clock", "contestants", "dice", "memory")),
    *(f"common.sandbox.{name}" for name in ("rotation", "session", "shifting", "timed")),
)
"""The modules whose functions take a timed sample."""
BUILDERS = ("interpreter_builder", "interpreter_semantic")
"""What a kernel's operations go through in Triton's interpreter, by name."""


def settle(session: Session) -> Reply:
    """Wait for the GPU and answer nothing, in proof that the request before is done with."""
    backend.synchronize()
    return {}


def limit(session: Session, nbytes: int) -> Reply:
    """Take no more than so many bytes of the GPU's memory."""
    backend.limit(nbytes)
    return {}


REQUESTS: Mapping[type[wire.Request], Callable[..., Reply]] = MappingProxyType(
    {
        wire.Limit: limit,
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
        wire.Turn: timed.take_turn,
        wire.Turns: timed.take_turns,
        wire.Capture: timed.capture,
        wire.RunOn: timed.run_on,
        wire.Probe: timed.probe,
        wire.Trace: timed.trace_calls,
        wire.Tunable: tunables.tunable,
        wire.Force: tunables.force,
        wire.Lookups: tunables.lookups,
        wire.Launches: launches.launches,
    }
)
"""The function that answers each request, called with the session and the request's fields.

Only `Share` is not here: it comes with a file descriptor, and memory that cannot be mapped ends the
process. `Count` has its own modules, which few processes need.
"""


def become_worker(connection: socket.socket, server: int, wanted: wire.Fork) -> None:
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
    if not backend.ON_GPU and backend.TARGET != wire.EVERY:  # there no large memory is touched
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
    # held by this frame alone, where a solution cannot replace them
    token, send, end = "", connection.sendall, os._exit
    every, each_of, same = all, map, operator.is_
    decode = msgspec.json.Decoder(wire.AnyRequest).decode

    def refuse(broken: str, send: Any = send, end: Any = end) -> None:
        """Report tampering and end, in few steps: any other function may be a replaced one."""
        line = '{"token": "%s", "reply": {"verdict": "TAMPERED", "reason": "%s"}}\n'
        send((line % (token, broken)).encode())
        end(0)

    instances = (*json_instances(), *interpreter_instances())
    session = Session(Seal.of(relied_on(), ours(), instances, near=SAMPLING), refuse)
    below = roots(session, [refuse])
    _hide()
    while True:
        line, fds = wire.receive(connection)
        if not line:
            return
        request = decode(line)
        token = request.token
        answer = _answer(session, requests, request, fds) + b"\n"
        for part, objects, values in below:
            if not every(each_of(same, each_of(part, objects), values)):
                refuse("the seal was broken")
        send(answer)


def _answer(
    session: Session,
    requests: Mapping[type[wire.Request], Callable[..., Reply]],
    request: wire.Request,
    fds: Sequence[int],
) -> bytes:
    answer = wire.Answer(request.token, {})
    if isinstance(request, wire.Share):
        given_back = session.share(request.ticket, fds[0] if fds else None)
        answer.reply = {"given_back": given_back}
        return msgspec.json.encode(answer)
    fields = msgspec.structs.asdict(request)
    del fields["token"]
    try:
        answer.reply = requests[type(request)](session, **fields)
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


def relied_on() -> Iterator[ModuleType | type]:
    """Yield the modules and classes that call a solution, check its answer and time it."""
    yield from used()
    yield from (builtins, torch.autograd, torch.cuda, torch.nn.functional)
    yield from (json.encoder, json.decoder, sys.modules["json.scanner"])
    yield from (json.JSONEncoder, json.JSONDecoder, contextlib._GeneratorContextManager)
    yield from (random.Random, socket.socket, TorchDispatchMode)
    yield from (DeviceContext, sys.modules[DeviceContext.__module__])
    yield from (torch.Tensor, torch.UntypedStorage, torch.cuda.Event, torch.cuda.Stream)
    for module in (*ours(), *([triton.runtime.interpreter] if backend.INTERPRETED else [])):
        yield module
        classes = (value for value in vars(module).values() if isinstance(value, type))
        yield from (each for each in classes if each.__module__ == module.__name__)


def ours() -> list[ModuleType]:
    """Return the harness's own modules in this process."""
    return [module for name, module in sys.modules.items() if _is_ours(name)]


def used() -> Iterator[ModuleType]:
    """Yield the modules that ours call by name, such as numpy for the interpreter's checks.

    Settings replace functions of sys, such as its excepthook.
    """
    values = (value for module in ours() for value in vars(module).values())
    yield from (each for each in values if isinstance(each, ModuleType) and each is not sys)


def json_instances() -> Iterator[Held]:
    """Yield the encoder and the decoder that `json` keeps for all its calls."""
    for name in ("_default_encoder", "_default_decoder"):
        instance = getattr(json, name)
        yield hold(instance, f"json.{name}", *vars(instance))


def interpreter_instances() -> Iterator[Held]:
    """Yield Triton's interpreter, its builder and its semantics, as they are now."""
    if backend.INTERPRETED:
        module = triton.runtime.interpreter
        yield hold(module, "triton.runtime.interpreter", *BUILDERS)
        yield hold(module.interpreter_builder, BUILDERS[0])
        yield hold(module.interpreter_semantic, BUILDERS[1], "builder")


def _hide() -> None:
    """Forget the harness's modules: a solution that imports one gets a copy that nobody uses."""
    for name in list(filter(_is_ours, sys.modules)):
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "common"
