"""A solution's process: the setup after its fork, and the dispatch of requests.

The process answers the requests of `common/wire.py`, computes in memory shared with the harness,
and never holds an expected result.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Union, get_type_hints

import msgspec
import torch

from common import wire
from common.sandbox import backend, clock, shape_only
from common.sandbox.configurations import CONFIGURATIONS, tune
from common.sandbox.failures import judge
from common.sandbox.landlock import confine
from common.sandbox.seal import Seal, sealed_parts
from common.sandbox.session import Session
from common.wire import Reply

LARGEST_DATA = 8 << 30
"""The bytes of writable memory that a worker without a GPU may allocate."""
Answering = Callable[[Session, Any], Reply]
"""A function that answers the requests of one type, that of its parameter `request`."""


def answering(*functions: Answering) -> Mapping[type[wire.Request], Answering]:
    """Return the functions by the type of request that each answers."""
    names = {"Session": Session}  # a module that the session's imports has the name alone
    return {get_type_hints(each, localns=names)["request"]: each for each in functions}


REQUESTS = MappingProxyType(answering(
    Session.share, Session.load, Session.forward, Session.backward, Session.deliver, Session.stored,
    shape_only.at_full_shape, tune, clock.begin_timing, clock.take_samples, clock.run_calls,
))  # fmt: skip


def become_worker(
    server: int, wanted: wire.ForkRequest, connection: socket.socket, stack: int | None = None
) -> None:
    """Set up this process, a fresh fork of the process `server`, and answer requests.

    The process dies with the server, leaves no core dump, and is confined if the kernel has
    Landlock.
    """
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != server:  # the server died before the call of prctl
        return
    with contextlib.suppress(OSError):  # the kernel ends this process first if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    # before `confine`, which allows writes to TRITON_CACHE_DIR, set by `install`
    backend.install(wanted)
    confine(libc)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # CUDA reserves more address space than the machine has memory; a target's call touches little
    if not (backend.ON_GPU or backend.TARGET):
        resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_DATA, LARGEST_DATA))
        # M_PERTURB (-6): malloc fills with 0x5A, the complement of 0xA5, memory that no dispatch
        # mode of torch fills
        libc.mallopt(-6, 0xA5)
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    requests = REQUESTS
    if backend.COUNTED:  # few processes need these modules
        from common.sandbox import counted

        requests = MappingProxyType({**REQUESTS, **answering(counted.at_full_shape)})
    if stack is not None:
        faulthandler.register(wire.STACK, stack)
    serve(connection, requests)


def serve(connection: socket.socket, requests: Mapping[type[wire.Request], Answering]) -> None:
    """Answer one request after the other until the harness closes the socket."""
    seal = Seal(sealed_parts())
    session, check = Session(seal), seal.check  # bound now: a solution can replace session.seal
    decode = msgspec.json.Decoder(Union[tuple(requests)]).decode  # noqa: UP007
    hide_modules()
    while (received := wire.receive(connection))[0]:
        line, session.fds = received
        connection.sendall(_answer(session, requests, decode(line), check) + b"\n")


def _answer(
    session: Session,
    requests: Mapping[type[wire.Request], Answering],
    request: wire.Request,
    check: Callable[[], None],
) -> bytes:
    answer = wire.Answer(request.token, {})
    try:
        try:
            answer.reply = requests[type(request)](session, request)
        finally:
            check()
        answer.reply |= CONFIGURATIONS.reply()
        return msgspec.json.encode(answer)
    except BaseException as error:  # also SystemExit: a solution must not end the process
        answer.reply = judge(error) | CONFIGURATIONS.reply()
        # without the memory, no further request can be answered
        answer.ended = isinstance(request, wire.Share) or _context_is_lost()
        return msgspec.json.encode(answer)


def _context_is_lost() -> bool:
    """Return whether this process's CUDA context is unusable, as after an illegal address."""
    try:
        backend.synchronize()
    except RuntimeError:
        return True
    return False


def hide_modules() -> None:
    """Hide the harness's modules: a solution that imports a module of these gets an unused copy."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "common"]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
