"""The requests of a timed process: when its clock begins, what it checks, and its turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from common.sandbox import backend, timed
from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.spans import spans_of
from common.sandbox.rotation import TimedCall


@pytest.mark.parametrize(("beside", "seen"), [(False, [[], []]), (True, [[], [False]])])
def test_the_clock_before_is_freed_before_the_next_copies_its_inputs(monkeypatch, beside, seen):
    class Session:
        clocks: ClassVar = {False: "the one before"}
        prepare = None

        def check_output(self, output):
            pass

    def timed_call(session, *_, changes):
        found.append(list(session.clocks))
        return TimedCall(lambda: torch.ones(1), [], torch.ones(1))

    found, session = [], Session()
    monkeypatch.setattr(timed, "_timed_call", timed_call)
    monkeypatch.setattr(timed, "peak_memory", lambda ours: None)
    made = {each: SimpleNamespace(slow=each) for each in (False, True)}
    monkeypatch.setattr(timed, "Clock", lambda ours, backward, limits: made[backward])
    assert timed.begin_timing(session, [{}], [], backward=False)["slow"] is False
    assert timed.begin_timing(session, [{}], [], backward=True, keep_other=beside)["slow"] is True
    assert found == seen
    assert session.clocks[True] == made[True]
    assert session.clocks.get(False) == (made[False] if beside else None)


def test_a_timed_input_may_lie_amid_what_a_graded_calls_input_was(monkeypatch):
    """Its addresses were held against the end of the other: once in some hundred timings."""
    for name in ("Rotation", "peak_memory"):
        monkeypatch.setattr(timed, name, lambda *_: None)
    monkeypatch.setattr(timed, "Clock", lambda *_: SimpleNamespace(slow=False))
    session = SimpleNamespace(prepare=None, clocks={})
    monkeypatch.setattr(backend, "INTERPRETED", True)
    monkeypatch.setattr(backend, "bounds", bounds, raising=False)
    memory = torch.zeros(64)
    backend.begin_watch({"x": memory[:16]}, backwards=False)
    timed.begin_timing(session, [], [], backward=False)
    (span,) = spans_of("x", memory[8:40], bounds.WATCH.inputs)
    assert span.holds(memory[8:40].data_ptr(), memory[40:].data_ptr())


def test_eagers_own_samples_are_not_held_against_the_seal(monkeypatch):
    checks = []
    monkeypatch.setattr(
        timed, "Rotation", lambda calls, backward, check, slots: checks.append(check)
    )
    monkeypatch.setattr(timed, "Clock", lambda *_: SimpleNamespace(slow=False))
    monkeypatch.setattr(timed, "peak_memory", lambda ours: None)
    session = SimpleNamespace(prepare=None, clocks={}, check_output="output alone")
    limits = {"copy_bytes": 8, "products": [], "dtype": "float32"}
    timed.begin_timing(session, [], [], backward=False, limits=limits)
    timed.begin_timing(session, [], [], backward=False)
    assert checks[0] == "output alone"
    assert checks[1].func is timed.check_sample


def test_several_take_their_turns_with_the_probe_before_and_after_each():
    class Probes:
        def take(self, clock, rounds):
            done.append(("probe", rounds))
            return [float(each) for each in range(rounds)]

    class Clock:
        ours = SimpleNamespace(delivered=lambda: {"call": len(done), "shift": 0})

        def take_samples(self, *how):
            done.append(how)
            return [7.0] * 2

    session = SimpleNamespace(probes=Probes(), clocks={True: Clock()})
    for look in (3, 0):
        done = []
        found = timed.take_samples(session, ["b", "a"], "gpu", 2, 1, look, True)
        turns = [(name, "gpu", 2, 1) for name in "ba"]
        assert found["kept"] == {"call": 4 if look else 2, "shift": 0}, "of the last turn"
        assert list(found["samples"].items()) == [("b", [7.0] * 2), ("a", [7.0] * 2)]
        if look:
            woken = float(timed.WAKING)
            assert found["probes"] == [[woken, woken + 1, woken + 2], *[[0.0, 1.0, 2.0]] * 2]
            assert done == [("probe", timed.WAKING + 3), turns[0], ("probe", 3), turns[1],
                            ("probe", 3)]  # fmt: skip
        else:
            assert (found["probes"], done) == ([], turns)
