"""Checks of timed calls: their results, their samples, and times below the device's limits."""

from __future__ import annotations

import pytest
import torch

from common import ops
from common.arena import lay_out, shifted, storage_bytes
from common.grading.calls import call_json, call_tensors
from common.measure import limits, timing
from common.ops._draw import draw
from common.sandbox import timed
from common.sandbox.rotation import Rotation, TimedCall
from common.spec import Work

ROPE = ops.load("rope")
CASE = next(ROPE.cases("smoke"))


def rotation(count=2, forward=torch.Tensor.neg):
    """Calls on eight numbers each, in memory of their own."""
    inputs = [torch.arange(8.0) + 10 * i for i in range(count)]
    calls = [
        TimedCall(
            lambda x=x: forward(x),
            wanted=[],
            upstream=x,
            memory=[storage_bytes(x).view(-1, 4)],
            results={"output": torch.zeros(8)},
        )
        for x in inputs
    ]
    return Rotation(calls, backward=False), inputs, calls


def test_inputs_change_in_place_to_what_the_harness_can_work_out():
    ours, inputs, _ = rotation()
    drawn = [x.clone() for x in inputs]
    seen = set()
    for _ in range(20):
        ours.renew()
        for x, before, shift in zip(inputs, drawn, ours._shifts, strict=True):
            assert torch.equal(storage_bytes(x), shifted(before, shift))
            assert sorted(x.tolist()) == before.tolist()
            seen.add(tuple(x.tolist()))
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("name", "changing"),
    [
        ("rope", {"t", "upstream"}),  # as for freqs, angles in another order are no case like it
        ("masked_linear", {"x", "w_v", "w_t", "mask", "upstream"}),
    ],
)
def test_a_mask_changes_too(name, changing):
    op = ops.load(name)
    arguments, upstream = draw(op, next(op.cases("smoke")), 0, "cpu")
    slots = lay_out(call_tensors(arguments, upstream).items())
    found = timed.changing(call_json(op, arguments, slots))
    assert found == [slot.json() for each, slot in slots.items() if each in changing]


def test_every_sample_has_its_chance_to_be_kept():
    kept = set()
    for _ in range(60):
        ours, _, calls = rotation(count=4)
        for _ in range(4):
            ours.renew()
            ours.run()
            ours.keep()
        index = ours.kept["call"]
        kept.add(index)
        drawn = torch.arange(8.0) + 10 * index
        wanted = -shifted(drawn, ours.kept["shift"]).view(torch.float32)
        assert torch.equal(calls[index].results["output"], wanted)
    assert kept == {0, 1, 2, 3}


def test_every_samples_output_is_checked():
    def check(output):
        raise ValueError(f"{output.numel()} elements")

    *_, calls = rotation()
    ours = Rotation(calls, backward=False, check=check)
    ours.run()
    with pytest.raises(ValueError, match="8 elements"):
        ours.keep()


def test_results_in_one_memory_are_seen():
    buffer = torch.zeros(8)
    for forward, shared in ((torch.Tensor.neg, False), (lambda x: buffer.copy_(x), True)):
        ours, *_ = rotation(forward=forward)
        for _ in range(3):
            ours.run()
        assert ours.shared == shared


@pytest.mark.parametrize(
    "times",
    [
        {"gpu": {"solution": [float("nan")]}, "host": {}},
        {"gpu": {"solution": [-1.0]}, "host": {}},
        {"gpu": {"solution": ["1"]}, "host": {}},
        {"gpu": {}, "host": {}, "more": {}},
        {"gpu": 1, "host": {}},
        {"gpu": {}, "host": {"solution": [1.0]}},
        {"gpu": {}, "host": {"solution": [1.0], "eager": []}},
        {"gpu": {}, "host": {"solution": [0.0], "eager": [1.0]}},
        {"gpu": {"copy": [1.0]}, "host": {"solution": [1.0], "eager": [1.0]}},
        {"gpu": {"solution": 1.0}, "host": {}},
    ],
)
def test_what_is_no_sample_is_seen(times):
    assert not timing._well_formed(times)


@pytest.mark.parametrize("kept", [{"call": 2, "shift": 1}, {"call": 0, "shift": None}, {}, None, 1])
def test_what_names_no_call_is_seen(kept):
    assert not timing._names_a_call(kept)


def test_samples_are_samples():
    host = {"solution": [0.5], "eager": [1.0]}
    times = {"gpu": {"solution": [1.5], "eager": [2.0]}, "host": host}
    assert timing._well_formed({"gpu": {}, "host": host}), "without a GPU"
    assert timing._well_formed(times)
    assert timing._names_a_call({"call": 1, "shift": 0})


def test_the_floor_is_the_larger_of_both_and_forgives_the_cache():
    h200 = limits.PEAKS["NVIDIA H200"]
    by_memory = limits.floor(h200, 50, Work(2050, 1))
    assert by_memory == pytest.approx(1e6 * 2000 / h200.bytes_per_second)
    by_flops = limits.floor(h200, 50, Work(0, 10**15))
    assert by_flops == pytest.approx(1e6 * 1e15 / h200.flops_per_second["bfloat16"])


@pytest.mark.parametrize(("name", "refused"), [("NVIDIA H200", True), ("another", False)])
def test_faster_than_the_device_is_refused(name, refused, monkeypatch):
    properties = type("Properties", (), {"L2_cache_size": 0, "name": name})
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    work = Work(48_000_000, 0)  # 10 us on an H200
    assert bool(limits.broken([9.0, 9.9, 50.0], work, "cuda")) == refused
    assert limits.broken([9.0, 10.1, 10.2], work, "cuda") is None
    assert limits.broken([], work, "cuda") is None
