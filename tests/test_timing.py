"""Checks of timed calls: their results, their samples, and times below the device's limits."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from common import ops
from common.arena import lay_out, shifted, storage_bytes
from common.grading.calls import call_json, call_tensors
from common.measure import stopwatch
from common.measure.stopwatch import Stopwatch
from common.measure.timed_process import is_samples, names_a_call
from common.ops._draw import draw
from common.sandbox import timed
from common.sandbox.clock import WARM_UP_CALLS
from common.sandbox.failures import Refused
from common.sandbox.rotation import Rotation, TimedCall, overlap
from common.sandbox.shifting import Changing
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
def test_inputs_change_in_place_to_what_the_harness_can_work_out(unit):
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

        def hold(self):
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
    monkeypatch.setattr(timed, "Clock", lambda ours, backward, limits: ("clock", backward))
    timed.begin_timing(session, [{}], [], backward=False)
    timed.begin_timing(session, [{}], [], backward=True, beside=beside)
    assert found == seen
    assert session.clocks[True] == ("clock", True)
    assert session.clocks.get(False) == (("clock", False) if beside else None)


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


class Process:
    """A process whose calls take the host and the GPU so many seconds, and the changes `change`."""

    def __init__(self, host, gpu=0.0, change=0.0, hiccups=()):
        self.host, self.gpu, self.change, self.hiccups = host, gpu, change, iter(hiccups)
        self.runs, self.inputs = [], 2

    def seconds(self, name, rounds, renew, run=True, wait=True):
        assert renew, "else a call could return an earlier one's results"
        calls = rounds * self.inputs
        self.runs.append((calls, wait))
        each = max(self.host, self.gpu) if wait else self.host
        return calls * (each * run + self.change) + next(self.hiccups, 0.0)


@pytest.mark.parametrize("change", [0.0, 40e-6])
def test_a_host_time_that_is_too_short_by_the_stopwatch_is_forged(change):
    watch = Stopwatch(Process(20e-6, gpu=90e-6, change=change), "host")
    assert watch.beside(lambda rounds: [20.0] * rounds)(3) == [20.0] * 3
    assert watch.forged(20.0) is None, "a run that does not wait has no GPU time in it"
    assert watch.forged(20.0 / 1.29) is None
    assert "it reports 15.2 us a call" in watch.forged(20.0 / 1.32)
    assert "takes 20 us at least" in Stopwatch(Process(20e-6), "host").forged(0.5)


def test_a_gpu_time_is_held_against_the_longer_of_both_by_the_stopwatch():
    watch = Stopwatch(Process(20e-6, gpu=90e-6), "gpu")
    assert watch.forged(90.0) is watch.forged(90.0 / 1.29) is None
    assert "takes 90 us at least" in watch.forged(90.0 / 1.32)
    hidden = Stopwatch(Process(100e-6, gpu=90e-6), "gpu")
    assert hidden.forged(20.0) is None, "the host is slower, so that the GPU's time does not show"


def test_the_hosts_time_is_measured_only_where_it_may_be_the_longer():
    quick, bound = Process(20e-6, gpu=90e-6), Process(200e-6, gpu=90e-6)
    for process in (quick, bound):
        assert Stopwatch(process, "gpu").beside(lambda rounds: [90.0])(1) == [90.0]
    assert {wait for _, wait in quick.runs} == {True}
    assert {wait for _, wait in bound.runs} == {True, False}


def test_slow_calls_have_a_run_beside_their_first_turn_alone():
    slow, quick = Process(1e-3, gpu=0.3), Process(20e-6, gpu=90e-6)
    for process, reported in ((slow, 3e5), (quick, 90.0)):
        take = Stopwatch(process, "gpu").beside(lambda rounds, each=reported: [each] * rounds)
        runs = [take(1) and len(process.runs) for _ in range(3)]
        assert runs == ([2, 2, 2] if process is slow else [2, 4, 6])


def test_runs_that_were_disturbed_accuse_nobody():
    late = [0.1, 0.1, 0.1, 0.0, 0.1, 0.0]
    assert Stopwatch(Process(20e-6, hiccups=late), "host").forged(20.0) is None
    assert Stopwatch(Process(20e-6, hiccups=[0.1, 0.0] * 99), "host").forged(20.0) is not None


def test_changes_that_take_longer_than_the_calls_with_them_hide_nothing():
    slow_changes = Process(1000e-6, hiccups=[0.0, 0.1] * 99)
    assert "it reports 100 us" in Stopwatch(slow_changes, "host").forged(100.0)


def test_nobody_foresees_the_number_of_calls():
    process = Process(20e-6)
    for _ in range(20):
        Stopwatch(process, "gpu").measure(20.0)
    assert len(set(process.runs)) == 2
    assert min(process.runs)[0] * 20.0 >= stopwatch.RUN
