"""Checks of timed calls: their results, their samples, and times below the device's limits."""

from __future__ import annotations

import functools
import itertools
import random
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from common import ops
from common.arena import lay_out, shifted, storage_bytes
from common.grading.calls import call_json, call_tensors
from common.measure.timed_process import is_samples, names_a_call
from common.ops._draw import draw
from common.sandbox import backend, timed
from common.sandbox.clock import WARM_UP_CALLS
from common.sandbox.failures import Refused
from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.spans import spans_of
from common.sandbox.rotation import Changing, Rotation, TimedCall, overlap
from common.sandbox.timed import check_sample

ROPE = ops.load("rope")
CASE = next(ROPE.cases("smoke"))


def rotation(count=2, forward=torch.Tensor.neg, check=lambda output: None, unit=1):
    """Calls on eight numbers each, in memory of their own."""
    inputs = [torch.arange(8.0) + 10 * i for i in range(count)]
    calls = [
        TimedCall(
            lambda x=x: forward(x),
            wanted=[],
            upstream=x,
            changing=[Changing(x, storage_bytes(x).view(-1, 4), unit)],
        )
        for x in inputs
    ]
    slots = (torch.zeros(8),)
    return Rotation(calls, backward=False, check=check, slots=slots), inputs, slots[0]


# --- changing inputs ------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1, 2, 4])
def test_inputs_change_in_place_to_what_the_harness_can_work_out(monkeypatch, unit):
    """By shifts of one seed: those of one seed in 2,400 never move the last element first."""
    monkeypatch.setattr("common.sandbox.rotation.below", random.Random(0).randrange)
    ours, inputs, _ = rotation(unit=unit)
    drawn = [x.clone() for x in inputs]
    seen = set()
    for _ in range(30):
        versions = [x._version for x in inputs]
        ours.renew()
        for x, before, shift in zip(inputs, drawn, ours.shifts.totals, strict=True):
            assert torch.equal(storage_bytes(x), shifted(before, shift * unit))
            seen.add(tuple(x.tolist()))
        assert all(x._version > before for x, before in zip(inputs, versions, strict=True))
    assert len(seen) > 10 / unit
    assert {row[1] - row[0] for row in seen} == ({1.0} if unit > 1 else {1.0, -7.0})


@pytest.mark.parametrize(
    ("name", "changing"),
    [
        ("rope", {"t": 1, "upstream": 1, "freqs": 16}),
        ("masked_linear", {"x": 1, "w_v": 1, "w_t": 1, "mask": 1, "upstream": 1}),
    ],
)
def test_every_input_changes_and_rows_stay_whole(name, changing):
    op = ops.load(name)
    arguments, upstream = draw(op, next(op.cases("smoke")), 0, "cpu")
    slots = lay_out(call_tensors(arguments, upstream).items())
    assert call_json(op, arguments, slots)["changing"] == changing


# --- results that are kept ------------------------------------------------------------------------


def test_every_call_of_every_burst_has_its_chance_to_be_kept():
    kept = set()
    for _ in range(100):
        ours, _, slot = rotation(count=3)
        for _ in range(4):
            ours.renew()
            for _ in range(3):
                ours.run()
            ours.keep()
        index, shift = (found := ours.delivered())["call"], found["shift"]
        kept.add(index)
        drawn = torch.arange(8.0) + 10 * index
        wanted = -shifted(drawn, shift).view(torch.float32)
        assert torch.equal(slot, wanted)
        assert ours.delivered() is None
    assert kept == {0, 1, 2}


def test_a_call_that_is_kept_in_passing_can_be_any():
    kept = set()
    ours, _, slot = rotation(count=2)
    for _ in range(60):
        for _ in range(3):
            ours.renew()
            ours.run()
            ours.run()
            ours.keep_in_passing()
        found = ours.delivered()
        drawn = torch.arange(8.0) + 10 * found["call"]
        wanted = -shifted(drawn, found["shift"]).view(torch.float32)
        assert torch.equal(slot, wanted)
        kept.add(found["call"])
    assert kept == {0, 1}


def test_every_samples_output_is_checked():
    def check(output):
        raise ValueError(f"{output.numel()} elements")

    ours, *_ = rotation(check=check)
    ours.run()
    with pytest.raises(ValueError, match="8 elements"):
        ours.keep()


def test_tampering_is_looked_for_after_every_sample():
    class Session:
        looked: ClassVar = []

        def hold(self, near):
            self.looked.append("for tampering")

        def check_output(self, output):
            self.looked.append(output.numel())

    ours, *_ = rotation(check=functools.partial(check_sample, Session()))
    for _ in range(3):
        ours.renew()
        ours.run()
        ours.keep()
    assert Session.looked == ["for tampering", 8] * 3


@pytest.mark.parametrize(("beside", "seen"), [(False, [[], []]), (True, [[], [False]])])
def test_the_clock_before_is_freed_before_the_next_copies_its_inputs(monkeypatch, beside, seen):
    class Session:
        clocks: ClassVar = {False: "the one before"}
        prepare = None

        def hold(self):
            pass

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
    assert timed.begin_timing(session, [{}], [], backward=True, beside=beside)["slow"] is True
    assert found == seen
    assert session.clocks[True] == made[True]
    assert session.clocks.get(False) == (made[False] if beside else None)


def test_a_timed_input_may_lie_amid_what_a_graded_calls_input_was(monkeypatch):
    """Its addresses were held against the end of the other: once in some hundred timings."""
    for name in ("Rotation", "peak_memory"):
        monkeypatch.setattr(timed, name, lambda *_: None)
    monkeypatch.setattr(timed, "Clock", lambda *_: SimpleNamespace(slow=False))
    session = SimpleNamespace(prepare=None, clocks={}, hold=lambda: None)
    monkeypatch.setattr(backend, "INTERPRETED", True)
    monkeypatch.setattr(backend, "bounds", bounds, raising=False)
    memory = torch.zeros(64)
    backend.begin_watch({"x": memory[:16]}, backwards=False)
    timed.begin_timing(session, [], [], backward=False)
    (span,) = spans_of("x", memory[8:40], bounds.WATCH.inputs)
    assert span.holds(memory[8:40].data_ptr(), memory[40:].data_ptr())


@pytest.mark.parametrize(("drawn", "near"), [(0, False), (1, True), (3, True)])
def test_after_a_sample_all_is_compared_where_the_draw_says_so(monkeypatch, drawn, near):
    held = []
    session = SimpleNamespace(hold=lambda near: held.append(near), check_output=held.append)
    monkeypatch.setattr(timed, "below", lambda count: drawn % count)
    timed.check_sample(session, "output")
    assert held == [near, "output"]


def test_eagers_own_samples_are_not_held_against_the_seal(monkeypatch):
    checks = []
    monkeypatch.setattr(
        timed, "Rotation", lambda calls, backward, check, slots: checks.append(check)
    )
    monkeypatch.setattr(timed, "Clock", lambda *_: SimpleNamespace(slow=False))
    monkeypatch.setattr(timed, "peak_memory", lambda ours: None)
    session = SimpleNamespace(
        prepare=None, clocks={}, hold=lambda **_: checks.append("held"), check_output="output alone"
    )
    limits = {"copy_bytes": 8, "products": [], "dtype": "float32"}
    timed.begin_timing(session, [], [], backward=False, limits=limits)
    timed.begin_timing(session, [], [], backward=False)
    assert checks[0] == "output alone"
    assert checks[2].func is timed.check_sample


def test_several_take_their_turns_with_the_probe_before_and_after_each(monkeypatch):
    class Probes:
        def take(self, clock, rounds):
            done.append(("probe", rounds))
            return [float(each) for each in range(rounds)]

    def take_turn(session, name, clock, rounds, burst, backward):
        done.append((name, clock, rounds, burst, backward))
        return {"samples": [7.0] * rounds}

    session = SimpleNamespace(probes=Probes())
    monkeypatch.setattr(timed, "take_turn", take_turn)
    for look in (3, 0):
        done = []
        found = timed.take_turns(session, ["b", "a"], "gpu", 2, 1, look, True)
        turns = [(name, "gpu", 2, 1, True) for name in "ba"]
        assert list(found["samples"].items()) == [("b", [7.0] * 2), ("a", [7.0] * 2)]
        if look:
            woken = float(timed.WAKING)
            assert found["probes"] == [[woken, woken + 1, woken + 2], *[[0.0, 1.0, 2.0]] * 2]
            assert done == [("probe", timed.WAKING + 3), turns[0], ("probe", 3), turns[1],
                            ("probe", 3)]  # fmt: skip
        else:
            assert (found["probes"], done) == ([], turns)


def ring(count):
    """Return a function that writes to `count` buffers in turn."""
    buffers = itertools.cycle([torch.zeros(8) for _ in range(count)])
    return lambda x: next(buffers).copy_(x)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_ring_of_buffers_is_seen(count):
    for forward, shared in ((torch.Tensor.neg, False), (ring(count), True)):
        ours, *_ = rotation(forward=forward)
        for _ in range(WARM_UP_CALLS):
            ours.run()
        if shared:
            with pytest.raises(Refused, match="results of several calls lie in the same memory"):
                ours.refuse_shared()
        else:
            ours.refuse_shared()


class Lazy(torch.Tensor):
    pass


@pytest.mark.parametrize("keep", [Rotation.keep, Rotation.keep_in_passing])
def test_a_result_that_could_be_computed_later_is_seen(keep):
    ours, *_ = rotation(forward=lambda x: x.clone().as_subclass(Lazy))
    ours.run()
    with pytest.raises(Refused, match="a result is a Lazy, which may not hold its values"):
        keep(ours)


def test_a_gradient_may_be_the_upstream_one():
    inputs = torch.arange(8.0)
    changing = [Changing(inputs, storage_bytes(inputs).view(-1, 4))]
    call = TimedCall(lambda: inputs.view(2, 4), [], inputs, changing)
    ours = Rotation([call], backward=False, slots=(torch.zeros(2, 4),))
    ours.run(), ours.run()
    ours.refuse_shared()


def test_results_that_overlap_are_seen_and_neighbours_are_none():
    buffer = torch.zeros(24)
    parts = [torch.from_numpy(buffer.numpy()[start : start + 8]) for start in (0, 4, 8)]
    first, between, second = parts
    assert not overlap([[first], [second], [torch.empty(0)], [torch.empty(0)]])
    assert overlap([[first], [between]])
    assert not overlap([[first, first[2:]], [second]]), "gradients of one call may share"


# --- checks of the replies ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "samples", [[float("nan"), 1.0], [-1.0, 1.0], ["1", 1.0], [0.0, 1.0], [1.0], [], None, 1.0]
)
def test_what_is_no_sample_is_seen(samples):
    assert not is_samples(samples, 2)
    assert is_samples([1.5, 2.0], 2)


@pytest.mark.parametrize("kept", [{"call": 2, "shift": 1}, {"call": 0, "shift": None}, {}, None, 1])
def test_what_names_no_call_is_seen(kept):
    assert not names_a_call(kept, 2)
    assert names_a_call({"call": 1, "shift": 0}, 2)
