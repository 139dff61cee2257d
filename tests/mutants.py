"""A fork server whose workers lack one check each, the one that a solution's folder is named after.

`python -m tests.mutants FD`, in the place of `common.sandbox.server`; see test_mutations.py.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

from common import arena
from common.sandbox import poison, process, rotation, seal, server, timed
from common.sandbox.interpreter import bounds
from common.sandbox.session import Session
from common.wire import Reply


def nothing(*_: object, **__: object) -> None:
    pass


def _by_the_list(log: bounds.AccessLog) -> str | None:
    return log.faults[0] if log.faults else None


def _forwards(begin: Callable[..., object]) -> Callable[..., object]:
    return lambda self, tensors, backwards=False: begin(self, tensors)


MUTATIONS = {
    "no_poison": (poison, "fill", nothing),
    "no_seal": (seal._Sealed, "broken", nothing),
    "no_code_in_the_seal": (seal, "FunctionType", type(None)),
    "no_threads": (seal, "_at_work", lambda frame: False),
    "no_modes": (seal.Seal, "_has_mode", nothing),
    "no_look_at_each_sample": (timed, "check_sample", Session.check_output),
    "no_watch": (bounds.Watch, "check", nothing),
    "no_tally": (bounds.AccessLog, "fault", _by_the_list),
    "no_other_order": (bounds.Watch, "begin_call", _forwards(bounds.Watch.begin_call)),
    "no_alias_check": (arena.Arena, "holds", lambda self, tensor: False),
    "no_renewal": (rotation.Rotation, "_shift", nothing),
    "no_shared_memory_check": (rotation.Rotation, "refuse_shared", nothing),
    "no_look_at_a_timed_input": (rotation.Rotation, "_check_inputs", nothing),
    "the_last_call_is_kept": (rotation.Rotation, "_drawn_of", lambda self: self._alive[-1]),
}
OWNERS = list(process.relied_on())


def mutated(session: Session, path: str, op: str) -> Reply:
    """Load a solution, one check removed and the seal renewed: only that check is then missing."""
    with contextlib.suppress(KeyError):
        setattr(*MUTATIONS[Path(path).parent.name])
    session.seal = seal.Seal(OWNERS)
    return session.load(path, op)


if __name__ == "__main__":
    process.REQUESTS = MappingProxyType({**process.REQUESTS, "load": mutated})
    server.run(socket.socket(fileno=int(sys.argv[1])))
