"""Timed calls on inputs that move in place: what lies where, which results are kept, the memory."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from common.arena import is_shifted, shifted, storage_bytes
from common.sandbox import memory, rotation
from common.sandbox.clock import WARM_UP_CALLS
from common.sandbox.failures import Refused
from common.sandbox.rotation import Changing, Rotation, Shifts, TimedCall, overlap, rotate
from common.sandbox.timed import check_sample

# --- inputs that move -----------------------------------------------------------------------------


def changing(x, unit=1):
    return Changing(x, storage_bytes(x).view(-1, x.itemsize), unit)


@pytest.mark.parametrize("count", [1, 2, 7, 24])
def test_every_rotation_is_a_roll(count):
    drawn = torch.arange(count, dtype=torch.int16)
    for distance in range(1, count + 1):
        memory, buffer = drawn.clone(), torch.empty(2 * distance, dtype=torch.uint8)
        rotate(storage_bytes(memory).view(-1, 2), distance, buffer)
        assert torch.equal(memory, drawn.roll(-distance))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_after_many_shifts_the_bits_are_those_that_were_drawn(monkeypatch, dtype):
    monkeypatch.setattr(rotation, "PIECE", 64)
    drawn = [torch.randn(sizes).to(dtype) for sizes in (500, 8, (3, 7), 0, 1)]
    inputs = [each.clone() for each in drawn]
    several = [changing(tensor, 7 if tensor.dim() > 1 else 1) for tensor in inputs]
    assert [each.large for each in several] == [True, False, False, False, False]
    ours, seen = Shifts([several, []]), set()
    for _ in range(50):
        versions = [tensor._version for tensor in inputs]
        ours.shift()
        total, other = ours.totals
        assert other == 0, "a call without inputs has none to move"
        for each, before, part in zip(inputs, drawn, several, strict=True):
            assert torch.equal(storage_bytes(each), shifted(before, total * part.unit))
            assert is_shifted(storage_bytes(each), before, total * part.unit)
        assert all(each._version > v for each, v in zip(inputs, versions, strict=True))
        seen.add(total % 500)
    assert len(seen) > 10


def test_a_large_input_takes_the_memory_of_one_piece(monkeypatch):
    monkeypatch.setattr(rotation, "PIECE", 64)
    ours = Shifts([[changing(torch.zeros(500)), changing(torch.zeros(900))] for _ in range(2)])
    held = [*ours._doubled, *ours._halves, ours._piece]
    assert sum(each.numel() for each in held) == rotation.PIECE
    for _ in range(30):
        assert rotation.PIECE / 2 < 4 * rotation._draw_shift(ours._calls[0]) <= rotation.PIECE


def test_a_changed_element_shows_after_any_number_of_shifts():
    drawn = torch.randn(40)
    x = drawn.clone()
    ours = Shifts([[changing(x)]])
    for change in (0, 1):
        x.view(torch.int32)[5] ^= change
        for _ in range(3):
            ours.shift()
        assert is_shifted(storage_bytes(x), drawn, ours.totals[0]) is not bool(change)
    assert not is_shifted(storage_bytes(x), drawn, ours.totals[0] + 1)


def test_bits_are_compared_and_not_values():
    drawn = torch.tensor([float("nan"), 0.0])
    assert is_shifted(storage_bytes(drawn.clone()), drawn, 0)
    assert not is_shifted(storage_bytes(-drawn), drawn, 0)


# --- calls on them and their results --------------------------------------------------------------


def calls_on(count=2, forward=torch.Tensor.neg, check=lambda output: None):
    """Calls on eight numbers each, in memory of their own, and the slot of their results."""
    inputs = [torch.arange(8.0) + 10 * i for i in range(count)]
    calls = [
        TimedCall(lambda x=x: forward(x), wanted=[], grad_output=x, changing=[changing(x)])
        for x in inputs
    ]
    slots = (torch.zeros(8),)
    return Rotation(calls, backward=False, check=check, slots=slots), slots[0]


@pytest.mark.parametrize(("keep", "samples", "calls"), [("keep", 4, 3), ("keep_in_passing", 3, 2)])
def test_every_call_of_every_burst_has_its_chance_to_be_kept(keep, samples, calls):
    kept = set()
    for _ in range(100):
        ours, slot = calls_on(count=calls)
        for _ in range(samples):
            ours.renew()
            for _ in range(calls):
                ours.run()
            getattr(ours, keep)()
        found = ours.delivered()
        kept.add(found["call"])
        drawn = torch.arange(8.0) + 10 * found["call"]
        assert torch.equal(slot, -shifted(drawn, found["shift"]).view(torch.float32))
        assert ours.delivered() is None
    assert kept == {*range(calls)}


def test_tampering_is_looked_for_after_every_sample():
    class Session:
        looked: ClassVar = []

        @property
        def seal(self):
            return SimpleNamespace(check=lambda: self.looked.append("for tampering"))

        def check_output(self, output):
            self.looked.append(output.numel())

    ours, _ = calls_on(check=functools.partial(check_sample, Session()))
    for _ in range(3):
        ours.renew()
        ours.run()
        ours.keep()
    assert Session.looked == ["for tampering", 8] * 3


def ring(count):
    """Return a function that writes to `count` buffers in turn."""
    buffers = itertools.cycle([torch.zeros(8) for _ in range(count)])
    return lambda x: next(buffers).copy_(x)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_ring_of_buffers_is_seen(count):
    for forward, shared in ((torch.Tensor.neg, False), (ring(count), True)):
        ours, _ = calls_on(forward=forward)
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
    ours, _ = calls_on(forward=lambda x: x.clone().as_subclass(Lazy))
    ours.run()
    with pytest.raises(Refused, match="a result is a Lazy, which may not hold its values"):
        keep(ours)


def test_a_gradient_may_be_the_upstream_one():
    inputs = torch.arange(8.0)
    call = TimedCall(lambda: inputs.view(2, 4), [], inputs, [changing(inputs)])
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


# --- the GPU's memory, played by a number ---------------------------------------------------------


class Gpu:
    """The allocator's numbers, which `take` and `free` move."""

    def __init__(self, monkeypatch, total=1000):
        self.total, self.now, self.peak, self.fraction = total, 100, 0, 1.0
        fakes = {
            "is_available": lambda: True,
            "synchronize": lambda: None,
            "reset_peak_memory_stats": self.reset,
            "memory_stats": self.stats,
            "mem_get_info": lambda: (self.total - self.now, self.total),
            "memory_reserved": lambda: self.now,
            "memory_allocated": lambda: self.now,
            "get_per_process_memory_fraction": lambda: self.fraction,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def reset(self):
        self.peak = self.now

    def stats(self):
        return {"requested_bytes.all.current": self.now, "requested_bytes.all.peak": self.peak}

    def take(self, nbytes):
        self.now += nbytes
        self.peak = max(self.peak, self.now)


def rotation_on(gpu, scratch, held, slots=()):
    """A call that takes `scratch` bytes for a while, and holds `held` with its result of 16."""

    def forward():
        gpu.take(scratch)
        gpu.take(-scratch)
        gpu.take(16 + held)
        return torch.zeros(4)

    return Rotation([TimedCall(forward, [], torch.zeros(4))], False, slots=slots)


@pytest.mark.parametrize(
    ("scratch", "held", "peak"), [(0, 0, 0), (50, 0, 34), (0, 7, 7), (10, 7, 7), (30, 7, 14)]
)
def test_the_peak_is_what_a_call_takes_beyond_its_results(monkeypatch, scratch, held, peak):
    gpu = Gpu(monkeypatch)
    ours = rotation_on(gpu, scratch, held)
    gpu.take(500), gpu.take(-500)
    assert rotation.peak_memory(ours) == peak
    assert not ours._alive
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rotation.peak_memory(ours) is None, "a CPU has none"


def test_a_gradient_that_is_the_upstream_one_takes_nothing(monkeypatch):
    gpu = Gpu(monkeypatch)
    x, grad_output = torch.zeros(4, requires_grad=True), torch.zeros(4)

    def forward():
        gpu.take(56)
        return x.clone()

    ours = Rotation([TimedCall(forward, [x], grad_output, [changing(grad_output)])], True)
    assert rotation.peak_memory(ours) == 56 - 16


@pytest.mark.parametrize(
    ("total", "scratch", "alive"),
    [(10_000, 0, range(5, 18)), (230, 0, [4]), (180, 0, [2]), (180, 40, [1]), (133, 0, [1])],
)
def test_as_many_results_live_at_once_as_half_of_the_memory_holds(
    monkeypatch, total, scratch, alive
):
    for _ in range(20):
        gpu = Gpu(monkeypatch, total)
        ours = rotation_on(gpu, scratch, 0, slots=(torch.zeros(4),))
        rotation.run_at_once(ours, 17)
        assert len(ours._alive) in alive


def test_the_room_ends_at_the_share_that_a_process_may_take(monkeypatch):
    gpu = Gpu(monkeypatch)
    assert memory.available() == 900
    gpu.fraction = 0.25
    assert memory.available() == 150
    gpu.take(300)
    assert memory.available() == 0
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: gpu.now + 40)
    assert memory.available() == 40, "what torch keeps for later"


def test_what_is_given_back_is_free_for_others(monkeypatch):
    gpu, emptied = Gpu(monkeypatch), []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(gpu.now))
    memory.give_back()
    assert emptied == [100]
