"""A fork server whose workers lack one check each, the one that a solution's folder is named after.

`python -m tests.support.mutants FD`, in the place of `common.sandbox.server`; see
tests/corpus/test_checks_are_needed.py.
"""

import contextlib
import socket
import sys
from pathlib import Path
from types import MappingProxyType

from common import arena, wire
from common.sandbox import poison, process, rotation, seal, server, session
from common.sandbox.interpreter import bounds
from common.sandbox.session import Session
from common.wire import Reply


def nothing(*_: object, **__: object) -> None:
    pass


BEGIN_CALL = bounds.Watch.begin_call
EVERYWHERE = (bounds.Span("all memory", 0, 1 << 63),)
MUTATIONS = {
    "no_poison": (poison, "fill", nothing),
    "one_poison": (session, "POISONS", (1.0, 1.0)),
    "no_reentry": (poison.Poison, "_run", lambda mode, func, args, kwargs: func(*args, **kwargs)),
    "no_seal": (seal, "compress", lambda *_: ()),
    "no_threads": (seal, "_is_of_pool", lambda thread: True),
    "no_modes": (seal, "_modes", lambda *_: ()),
    "no_watch": (bounds.Watch, "check", nothing),
    "no_provenance": (bounds.WatchedLaunch, "reached_by", lambda *_: EVERYWHERE),
    "no_other_order": (bounds.Watch, "begin_call", lambda *of, **backwards: BEGIN_CALL(*of[:2])),
    "no_alias_check": (arena.Arena, "holds", lambda self, tensor: False),
    "no_renewal": (rotation.Rotation, "renew", rotation.Rotation.forget),
    "no_shared_memory_check": (rotation.Rotation, "refuse_shared", nothing),
}
SHOWN = {name: module for name, module in sys.modules.items() if name.startswith("common.")}


def mutated(session: Session, request: wire.Load) -> Reply:
    """Load a solution, one check removed and the seal renewed: only that check is then missing."""
    with contextlib.suppress(KeyError):
        setattr(*MUTATIONS[Path(request.path).parent.name])
    sys.modules.update(SHOWN)  # the process hides them from a solution
    session.seal.__init__(seal.sealed_parts())  # type: ignore[misc]
    process.hide_modules()
    return session.load(request)


if __name__ == "__main__":
    process.REQUESTS = MappingProxyType({**process.REQUESTS, wire.Load: mutated})
    server.run(socket.socket(fileno=int(sys.argv[1])))
