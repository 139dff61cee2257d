"""Timed calls on inputs that change: what lies where, which results are kept, the memory."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from common.arena import elements_of
from common.sandbox.rotation import SCARCE, Changing, Rotation, TimedCall, give_back, overlap
from common.verdicts import Failure


def changing(x, unit=1):
    return Changing(x, elements_of(x), elements_of(x).repeat(2), unit)


def calls_on(count=2, forward=torch.Tensor.neg, check=lambda output: None):
    """Calls on eight numbers each, in memory of their own, and the slot of their results."""
    xs = [torch.arange(8.0) + 10 * i for i in range(count)]
    calls = [TimedCall(lambda x=x: forward(x), upstream=(x,), changing=[changing(x)]) for x in xs]
    slots = (torch.zeros(8),)
    return Rotation(calls, check=check, slots=slots), slots[0]


# --- inputs that change ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_input_is_its_original_rotated_whatever_a_call_did_to_it(dtype):
    inputs = [torch.randn(sizes).to(dtype) for sizes in (500, 8, (3, 7), 0, 1)]
    inputs += [torch.randn(40).to(dtype)[::2], torch.tensor([True, False, False])]
    drawn = [elements_of(each).clone() for each in inputs]
    several = [changing(tensor, 7 if tensor.dim() > 1 else 1) for tensor in inputs]
    ours, seen = Rotation([TimedCall(list, changing=several), TimedCall(list)]), set()
    for _ in range(30):
        versions = [tensor._version for tensor in inputs]
        inputs[0][3] += 1
        ours.renew()
        for each, before, part in zip(inputs, drawn, several, strict=True):
            assert torch.equal(elements_of(each), before.roll(-ours.shifts[0] * part.unit))
        assert all(each._version > v for each, v in zip(inputs, versions, strict=True))
        seen.add(ours.shifts[0] % 500)
    assert len(seen) > 10


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_passing", [False, True])
def test_every_call_of_every_sample_may_be_the_kept_one(in_passing):
    """And an output of each sample is checked."""
    kept, checked = set(), []
    for _ in range(200):
        ours, slot = calls_on(count=3, check=checked.append)
        samples = []
        for _ in range(4):
            ours.renew()
            samples.append(ours.shifts)
            for _ in range(3):
                ours.run()
            ours.keep(in_passing)
        found = ours.report()["kept"]
        drawn = torch.arange(8.0) + 10 * found["call"]
        assert torch.equal(slot, -drawn.roll(-found["shift"]))
        assert ours.report()["kept"] is None
        shifts = [shifts[found["call"]] for shifts in samples]
        kept.add((shifts.index(found["shift"]), found["call"]))
    assert kept == {*itertools.product(range(4), range(3))}
    assert len(checked) == 4 * 200 * (not in_passing)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_ring_of_buffers_is_seen(count):
    buffers = itertools.cycle([torch.zeros(8) for _ in range(count)])
    for forward, shared in ((torch.Tensor.neg, False), (lambda x: next(buffers).copy_(x), True)):
        ours, _ = calls_on(forward=forward)
        ours.run_at_once(17)
        if shared:
            with pytest.raises(Failure, match="results of several calls lie in the same memory"):
                ours.refuse_shared()
        else:
            ours.refuse_shared()


class Lazy(torch.Tensor):
    pass


@pytest.mark.parametrize("in_passing", [False, True])
def test_a_result_that_could_be_computed_later_is_seen(in_passing):
    ours, _ = calls_on(forward=lambda x: x.clone().as_subclass(Lazy))
    ours.run()
    with pytest.raises(Failure, match="returned Lazy, which may not hold its values"):
        ours.keep(in_passing)


def test_a_gradient_may_be_the_upstream_one():
    inputs = torch.arange(8.0)
    call = TimedCall(lambda: inputs.view(2, 4), [], (inputs,), [changing(inputs)])
    ours = Rotation([call], slots=(torch.zeros(2, 4),))
    ours.run(), ours.run()
    ours.refuse_shared()


def test_both_outputs_of_a_call_are_checked_and_kept_with_all_gradients():
    q, k = (torch.arange(8.0, requires_grad=True) for _ in range(2))
    seen = []
    call = TimedCall(lambda: (2 * q, 3 * k), [q, k], (torch.ones(8), torch.full((8,), 2.0)))
    slots = tuple(torch.zeros(8) for _ in range(4))
    ours = Rotation([call], True, seen.append, slots)
    ours.run(), ours.keep()
    assert [slot[1].item() for slot in slots] == [2, 3, 2, 6]
    assert [len(outputs) for outputs in seen] == [2]


def test_results_that_overlap_are_seen_and_neighbours_are_none():
    buffer = torch.zeros(24)
    parts = [torch.from_numpy(buffer.numpy()[start : start + 8]) for start in (0, 4, 8)]
    first, between, second = parts
    assert not overlap([[first], [second], [torch.empty(0)], [torch.empty(0)]])
    assert overlap([[first], [between]])
    assert not overlap([[first, first[2:]], [second]]), "gradients of one call may share"
    assert overlap([[first, first[:2]], [between]]) and overlap([[second], [buffer[:9]]])


# --- the GPU's memory, played by a number ---------------------------------------------------------


@pytest.fixture
def allocator(monkeypatch):
    """Fake the allocator of a GPU of `total` bytes, 100 of which are in use; `take` takes some."""
    state = SimpleNamespace(total=1000, now=100, peak=0, fraction=1.0)

    def take(nbytes):
        state.now += nbytes
        state.peak = max(state.peak, state.now)

    fakes = {
        "is_available": lambda: True,
        "synchronize": lambda: None,
        "reset_peak_memory_stats": lambda: setattr(state, "peak", state.now),
        "max_memory_allocated": lambda: state.peak,
        "mem_get_info": lambda: (state.total - state.now, state.total),
        "memory_reserved": lambda: state.now,
        "memory_allocated": lambda: state.now,
        "get_per_process_memory_fraction": lambda: state.fraction,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    state.take = take
    return state


def rotation_on(allocator, scratch, slots=()):
    """A call that takes `scratch` bytes for a while, and 16 for its result."""

    def forward():
        allocator.take(scratch)
        allocator.take(-scratch)
        allocator.take(16)
        return torch.zeros(4).expand(3, 4)

    return Rotation([TimedCall(forward)], slots=slots)


@pytest.mark.parametrize(
    ("total", "fraction", "scratch", "calls"),
    [(10_000, 1, 0, range(5, 18)), (230, 1, 0, [4]), (180, 1, 0, [3]), (180, 1, 40, [2]),
     (133, 1, 0, [1]), (460, 0.5, 0, [4])],
)  # fmt: skip
def test_as_many_results_live_at_once_as_half_of_the_memory_holds(
    allocator, total, fraction, scratch, calls
):
    allocator.total, allocator.fraction = total, fraction
    for _ in range(20):
        allocator.now = 100
        rotation_on(allocator, scratch, slots=(torch.zeros(4),)).run_at_once(17)
        assert (allocator.now - 100) // 16 in calls


@pytest.mark.parametrize(("now", "emptied"), [(800, 0), (900, 1)])
def test_cached_memory_is_given_back_where_little_is_free(monkeypatch, allocator, now, emptied):
    done, allocator.now = [], now
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append(1))
    give_back(SCARCE)
    assert len(done) == emptied
