"""A fork server whose workers lack one check each, the one that a solution's folder is named after.

`python -m tests.support.mutants FD`, in the place of `common.sandbox.server`; see
tests/corpus/test_checks_are_needed.py.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

from common import arena, wire
from common.sandbox import (
    instances,
    namespaces,
    poison,
    process,
    rotation,
    seal,
    server,
)
from common.sandbox.interpreter import bounds
from common.sandbox.session import Session
from common.wire import Reply


def nothing(*_: object, **__: object) -> None:
    pass


def nothing_below(*_: object) -> tuple[()]:
    return ()


def _by_the_list(log: bounds.AccessLog) -> str | None:
    return log.faults[0] if log.faults else None


def _forwards(begin: Callable[..., object]) -> Callable[..., object]:
    return lambda self, tensors, backwards=False: begin(self, tensors)


def _anywhere(launch: bounds.Launch, pointers: object) -> tuple[bounds.Span, ...]:
    return (bounds.Span("all memory", 0, 1 << 63),)


def _at_once(mode: poison.Poison, func: Callable[..., object], args: tuple, kwargs: dict) -> object:
    return func(*args, **kwargs)


class Below:
    """What the seal rests on, taken anew where a mutation changed it."""

    latest: tuple[seal.Root, ...] = ()
    take = staticmethod(seal.roots)

    def __init__(self, *what: object) -> None:
        self.renew(*what)

    def __iter__(self) -> Iterator[seal.Root]:
        return iter(Below.latest)

    @classmethod
    def renew(cls, *what: object) -> None:
        sys.modules.update(SHOWN)  # the process hides them from a solution
        cls.latest = cls.take(*what)
        process._hide()


MUTATIONS = {
    "no_poison": (poison, "fill", nothing),
    "no_reentry": (poison.Poison, "_run", _at_once),
    "no_seal": (namespaces.Namespace, "broken", nothing),
    "no_code_in_the_seal": (namespaces, "FunctionType", Below),
    "no_values_in_the_seal": (process, "OURS", []),
    "no_instances": (instances.Held, "broken", nothing),
    "no_hidden_methods": (instances, "_methods", lambda kind: frozenset()),
    "no_roots": (Below, "take", staticmethod(nothing_below)),
    "no_threads": (seal, "_at_work", lambda frame: False),
    "no_modes": (seal.Seal, "_has_mode", nothing),
    "no_watch": (bounds.Watch, "check", nothing),
    "no_provenance": (bounds.Launch, "reached_by", _anywhere),
    "no_tally": (bounds.AccessLog, "fault", _by_the_list),
    "no_other_order": (bounds.Watch, "begin_call", _forwards(bounds.Watch.begin_call)),
    "no_alias_check": (arena.Arena, "holds", lambda self, tensor: False),
    "no_renewal": (rotation.Rotation, "renew", rotation.Rotation.forget),
    "no_shared_memory_check": (rotation.Rotation, "refuse_shared", nothing),
}
SHOWN = {module.__name__: module for module in process.ours()}
OWNERS, process.OURS = list(process.relied_on()), process.ours()


def mutated(session: Session, path: str, op: str) -> Reply:
    """Load a solution, one check removed and the seal renewed: only that check is then missing."""
    with contextlib.suppress(KeyError):
        setattr(*MUTATIONS[Path(path).parent.name])
    session.seal = seal.Seal.of(OWNERS, process.OURS, process.json_instances())
    Below.renew(session, [session.refuse])
    return session.load(path, op)


if __name__ == "__main__":
    process.roots = Below
    process.REQUESTS = MappingProxyType({**process.REQUESTS, wire.Load: mutated})
    server.run(socket.socket(fileno=int(sys.argv[1])))
