"""A solution's own process: what a fresh fork sets up, and the requests that it answers.

The process answers lines of JSON with lines of JSON, works in memory of the harness, and never
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
import triton
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from common.sandbox import backend, graded, timed, tunables
from common.sandbox.compiled import launches
from common.sandbox.failures import Refused, judge
from common.sandbox.instances import Held, hold
from common.sandbox.landlock import confine
from common.sandbox.poison import Poison
from common.sandbox.seal import Seal, roots
from common.sandbox.session import Session
from common.wire import Reply

if backend.COUNTED:
    from common.sandbox.counted import call as counted

LARGEST_DATA = 8 << 30
"""Bytes of memory that one worker without a GPU may write to."""
SAMPLING = (
    *("builtins", "time", "torch.cuda", "torch._utils"),
    *(f"common.sandbox.{name}" for name in ("backend", "clock", "contestants", "dice", "memory")),
    *(f"common.sandbox.{name}" for name in ("rotation", "session", "timed")),
)
"""The modules whose functions take a timed sample."""
DYNAMO = "torch._dynamo"
"""The modules of torch.compile, which take as long to import as torch. They replace functions of
torch that the tamper check remembers, so they are imported before a worker is forked, or never."""
BUILDERS = ("interpreter_builder", "interpreter_semantic")
"""What a kernel's operations go through in Triton's interpreter, by name."""
_GUARDED = Poison.__torch_dispatch__
"""As torch made it: a function that imports torch._dynamo when it is first called, to keep
torch.compile out of the mode."""


def stay_light() -> None:
    """Keep the mode that poisons memory from importing torch._dynamo."""
    Poison.__torch_dispatch__ = getattr(_GUARDED, "__wrapped__", _GUARDED)  # type: ignore[method-assign]


def grow() -> None:
    """Import torch._dynamo, for the workers that are forked from now on."""
    import torch._dynamo  # noqa: F401

    Poison.__torch_dispatch__ = _GUARDED  # type: ignore[method-assign]


class Lack:
    """A finder that ends the process where torch._dynamo is imported, if it is not there yet."""

    def __init__(self, end: Callable[[], object]) -> None:
        """Call `end` in the place of the import."""
        self._end = end

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing; other finders find the other modules."""
        if name == DYNAMO:
            self._end()


def settle(session: Session) -> Reply:
    """Wait for the GPU and answer nothing, in proof that the request before is done with."""
    backend.synchronize()
    return {}


def limit(session: Session, nbytes: int) -> Reply:
    """Take no more than so many bytes of the GPU's memory."""
    backend.limit(nbytes)
    return {}


REQUESTS: Mapping[str, Callable[..., Reply]] = MappingProxyType(
    {
        "limit": limit,
        "load": Session.load,
        "forward": graded.forward,
        "backward": graded.backward,
        "conflicts": graded.conflicts,
        "deliver": graded.deliver,
        "begin_timing": timed.begin_timing,
        "get_ready": timed.get_ready,
        "give_back": timed.give_back,
        "shifts": timed.shifts,
        "turn": timed.take_turn,
        "turns": timed.take_turns,
        "capture": timed.capture,
        "run_on": timed.run_on,
        "probe": timed.probe,
        "trace": timed.trace_calls,
        "tunable": tunables.tunable,
        "force": tunables.force,
        "lookups": tunables.lookups,
        "launches": launches.launches,
        "settle": settle,
        **({"count": counted.count} if backend.COUNTED else {}),
    }
)
"""The function that answers each request, called with the session and the request's arguments.

Only `arena` is not here: it comes with a file descriptor, and memory that cannot be mapped ends the
process.
"""


def become_worker(connection: socket.socket, server: int) -> None:
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
    confine(libc)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not backend.ON_GPU:  # CUDA reserves more than there is
        resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_DATA, LARGEST_DATA))
    if not backend.ON_GPU and backend.TARGET != backend.EVERY:  # there no large memory is touched
        libc.mallopt(-6, 0xA5)  # M_PERTURB: what no dispatch mode sees is a number too, 0x5A5A...
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    backend.install()
    serve(connection)


def serve(connection: socket.socket) -> None:
    """Answer one request after the other until the harness closes the socket."""
    # held by this frame alone, where a solution cannot replace them
    token, send, end = "", connection.sendall, os._exit
    every, each_of, same = all, map, operator.is_

    def refuse(broken: str, send: Any = send, end: Any = end) -> None:
        """Report tampering and end, in few steps: any other function may be a replaced one."""
        line = '{"token": "%s", "verdict": "TAMPERED", "reason": "%s"}\n'
        send((line % (token, broken)).encode())
        end(0)

    def lack(send: Any = send, end: Any = end) -> None:
        """Report that the process needs torch._dynamo, and end: another one has it."""
        send(b'{"token": "%s", "lacks": "torch._dynamo"}\n' % token.encode())
        end(0)

    if DYNAMO not in sys.modules:
        sys.meta_path.insert(0, Lack(lack))
    instances = (*json_instances(), *interpreter_instances())
    session = Session(Seal.of(relied_on(), ours(), instances, near=SAMPLING), refuse)
    below = roots(session, [refuse])
    _hide()
    pending = b""
    while True:
        chunk, fds, _, _ = socket.recv_fds(connection, 1 << 20, 1)
        if not chunk:
            return
        pending += chunk
        if not pending.endswith(b"\n"):
            continue
        message, pending = json.loads(pending), b""
        token = message.pop("token")
        reply = _answer(session, message, fds) | {"token": token}
        for part, objects, values in below:
            if not every(each_of(same, each_of(part, objects), values)):
                line = '{"token": "%s", "verdict": "TAMPERED", "reason": "the seal was broken"}\n'
                send((line % token).encode())
                end(0)
        send(json.dumps(reply).encode() + b"\n")


def _answer(session: Session, message: Reply, fds: list[int]) -> Reply:
    request = message.pop("request")
    if request == "arena":
        return {"given_back": session.share(message["ticket"], fds[0] if fds else None)}
    try:
        if request not in REQUESTS:
            raise Refused("RUNTIME_ERROR", f"no such request: {request}")
        return REQUESTS[request](session, **message)
    except BaseException as error:  # SystemExit among them: a solution may not end the process
        return judge(error) | ({"ended": True} if _context_is_lost() else {})


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
