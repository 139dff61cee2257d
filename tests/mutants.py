"""A fork server whose workers lack one check each, the one that a solution's folder is named after.

`python -m tests.mutants FD`, in the place of `common.sandbox.process`; see test_mutations.py.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from common import arena
from common.sandbox import process, rotation, seal
from common.sandbox.interpreter import bounds


def nothing(*_: object, **__: object) -> None:
    pass


def _by_the_list(log: bounds.AccessLog) -> str | None:
    return log.faults[0] if log.faults else None


def _forwards(begin: Callable[..., object]) -> Callable[..., object]:
    return lambda self, tensors, backwards=False: begin(self, tensors)


MUTATIONS = {
    "no_poison": (process, "fill", nothing),
    "no_seal": (seal._Sealed, "broken", nothing),
    "no_code_in_the_seal": (seal, "FunctionType", type(None)),
    "no_threads": (seal, "_at_work", lambda frame: False),
    "no_modes": (seal.Seal, "_has_mode", nothing),
    "no_look_at_each_sample": (process.Session, "_look", process.Session._check),
    "no_watch": (bounds.Watch, "check", nothing),
    "no_tally": (bounds.AccessLog, "fault", _by_the_list),
    "no_other_order": (bounds.Watch, "begin_call", _forwards(bounds.Watch.begin_call)),
    "no_alias_check": (arena.Arena, "holds", lambda self, tensor: False),
    "no_renewal": (rotation.Rotation, "renew", nothing),
    "no_shared_memory_check": (rotation.Rotation, "shared", False),
}
OWNERS = list(process.relied_on())
load = process.Session.load


def mutated(self: process.Session, path: str, op: str) -> process.Reply:
    """The seal is renewed, so that it is the missing check alone that is missed."""
    with contextlib.suppress(KeyError):
        setattr(*MUTATIONS[Path(path).parent.name])
    self._seal = seal.Seal(OWNERS)
    return load(self, path, op)


if __name__ == "__main__":
    process.Session.load = mutated
    process.fork_server(socket.socket(fileno=int(sys.argv[1])))
