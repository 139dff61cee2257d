"""A stand-in for Ray: its actors are made-up executors of this process, and it starts nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from common.engines import ray_engine
from common.engines.ray_engine import RayEngine

ENDLESS = 100
"""More often than that in a row nobody waits in vain."""


class RayError(Exception):
    """What Ray raises where an actor has ended."""


class RayTaskError(RayError):
    """What Ray raises where an actor's method did."""

    def __init__(self, cause):
        super().__init__(f"Traceback: {cause}")
        self.cause = cause


class TaskCancelledError(RayError):
    """What Ray raises where the driver has cancelled the call."""


def cancelled():
    """Yield nothing, as a call that was cancelled."""
    raise TaskCancelledError
    yield


class Reference:
    """The result of a call that is carried out once it is asked for."""

    def __init__(self, executor, call):
        self.executor, self.call = executor, call


class Stream(Reference):
    """The results of a generator, one after the other."""

    def __init__(self, executor, found):
        super().__init__(executor, None)
        self.found = found

    def __next__(self):
        found = next(self.found, StopIteration)
        if found is StopIteration:
            raise StopIteration
        return Reference(self.executor, lambda: found)


class Handle:
    """The handle of an actor."""

    def __init__(self, executor):
        self.executor = executor
        self.run = SimpleNamespace(options=lambda **_: self._method(Stream, executor.run))

    def __getattr__(self, name):
        if name == "__ray_ready__":
            return self._method(Reference, lambda: lambda: None)
        method = getattr(self.executor, name)
        return self._method(Reference, lambda *of: lambda: method(*of))

    def _method(self, reference, call):
        return SimpleNamespace(remote=lambda *of: reference(self.executor, call(*of)))


class FakeRay:
    """The module, over these executors; those that say something take turns."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, ActorUnavailableError=(),
        TaskCancelledError=TaskCancelledError,
    )  # fmt: skip

    def __init__(self, executors):
        self.executors, self.left, self.turn, self.silent = executors, list(executors), 0, 0

    def nodes(self):
        return [
            {"NodeID": each.name, "Alive": each.alive, "Resources": {"GPU": 1}}
            for each in self.executors
        ]

    def remote(self, actor):
        made = SimpleNamespace(remote=lambda *of: Handle(self.left.pop(0)))
        return SimpleNamespace(options=lambda **_: made)

    def is_initialized(self):
        return True

    def wait(self, pending, num_returns=1, timeout=None):
        said = [each for each in pending if each.executor.says]
        self.turn += 1
        self.silent = 0 if said else self.silent + 1
        assert self.silent < ENDLESS, "it waits for ever"
        if num_returns == 1 and said:
            said = [said[self.turn % len(said)]]
        return said, [each for each in pending if each not in said]

    def get(self, reference):
        return reference.call()

    def cancel(self, stream):
        stream.executor.says, stream.found = True, cancelled()

    def kill(self, handle, no_restart=True):
        handle.executor.kill(no_restart)

    def shutdown(self):
        pass


class FakeCluster(RayEngine):
    """The engine over made-up executors."""

    def __init__(self, job, executors):
        super().__init__(job)
        self._fake = FakeRay(executors)

    def __enter__(self):
        self._ray, ray_engine.ray = ray_engine.ray, lambda: self._fake
        return super().__enter__()

    def __exit__(self, *of):
        super().__exit__(*of)
        ray_engine.ray = self._ray

    def _connect(self):
        pass


@pytest.fixture
def begun(monkeypatch):
    """What Ray is started with, in place of Ray."""
    asked = {}
    fake = SimpleNamespace(init=lambda **how: asked.update(how))
    monkeypatch.setattr(ray_engine, "ray", lambda: fake)
    for name in ray_engine.OWN | ray_engine.QUICK:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return asked
