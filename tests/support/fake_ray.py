"""A stand-in for Ray: its actors live in this process, over made-up executors."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from common.engines import cluster, ray_engine
from common.engines.ray_engine import RayEngine

LIMIT = 0.2
"""Seconds for an executor to begin."""
ENDLESS = 100
"""More often than that in a row nobody waits in vain."""


class RayError(Exception):
    """What Ray raises where an actor has ended."""


class RayTaskError(RayError):
    """What Ray raises where an actor's method did."""

    def __init__(self, cause):
        super().__init__(f"Traceback: {cause}")
        self.cause = cause


class Reference:
    """A call of an actor's method, which is carried out once its result is asked for."""

    def __init__(self, executor, call):
        self.executor, self.call = executor, call


class Stream(Reference):
    """A call of a generator; each of its values is a reference."""

    def __next__(self):
        value = next(self.call, StopIteration)
        if value is StopIteration:
            raise StopIteration
        return Reference(self.executor, lambda: value)


class Handle:
    """The handle of an actor."""

    def __init__(self, actor, executor):
        self.executor = executor
        self.start = self._method(lambda: Reference(executor, actor.start))
        run = self._method(lambda task: Stream(executor, actor.run(task)))
        self.run = SimpleNamespace(options=lambda **_: run)

    def _method(self, call):
        return SimpleNamespace(remote=call)


class FakeRay:
    """The module; the executors that say something take turns."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, ActorUnavailableError=()
    )

    def __init__(self, executors):
        self.executors, self.left, self.turn, self.silent = executors, list(executors), 0, 0

    def nodes(self):
        return [{"Alive": True, "Resources": {"GPU": 1}} for _ in self.executors]

    def remote(self, actor):
        def made(job, neighbours):
            executor, one = self.left.pop(0), actor(job, neighbours)
            vars(one)["_executor"] = executor
            return Handle(one, executor)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=made))

    def wait(self, pending, timeout=None):
        said = [each for each in pending if each.executor.says]
        self.turn += 1
        self.silent = 0 if said else self.silent + 1
        assert self.silent < ENDLESS, "it waits for ever"
        if said:
            starting = [each for each in said if not isinstance(each, Stream)]
            said = starting[:1] or [said[self.turn % len(said)]]
        else:
            time.sleep(LIMIT / 2)
        return said, [each for each in pending if each not in said]

    def get(self, reference):
        return reference.call()

    def kill(self, handle):
        handle.executor.ended = True

    def shutdown(self):
        pass


class FakeCluster(RayEngine):
    """The engine over made-up executors."""

    def __init__(self, job, executors):
        super().__init__(job, SimpleNamespace(connect=lambda: None, share=1, longest_placing=LIMIT))
        self._fake = FakeRay(executors)

    def __enter__(self):
        self._ray, ray_engine.ray = ray_engine.ray, lambda: self._fake
        return super().__enter__()

    def __exit__(self, *of):
        super().__exit__(*of)
        ray_engine.ray = self._ray


@pytest.fixture
def begun(monkeypatch):
    """What Ray is started with, in place of Ray."""
    asked = {}
    fake = SimpleNamespace(init=lambda **how: asked.update(how))
    monkeypatch.setattr(cluster, "ray", lambda: fake)
    for name in cluster.OWN | cluster.QUICK:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return asked
