"""The floor under every time: the peak of a known device, or the limits measured on another."""

from __future__ import annotations

import pytest
import torch

from common.measure import limits, machine
from common.peaks import PEAKS
from common.spec import Work


@pytest.fixture
def named(monkeypatch):
    """A device of this name without a cache, or with one of so many bytes."""

    def name(name, cache=0):
        properties = type("Properties", (), {"L2_cache_size": cache, "name": name})
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)

    return name


@pytest.mark.parametrize(
    ("work", "least"),
    [
        (Work(2050, 1), 1e6 * 2000 / PEAKS["NVIDIA H200"].bytes_per_second),
        (Work(0, 10**15), 1e6 * 1e15 / PEAKS["NVIDIA H200"].flops_per_second["bfloat16"]),
    ],
)
def test_a_known_peak_is_the_larger_of_both_and_forgives_the_cache(named, work, least):
    named("NVIDIA H200", cache=50)
    assert limits.broken({"solution": [0.999 * least]}, work, "float16") is not None
    assert limits.broken({"solution": [1.001 * least]}, work, "float16") is None


def test_faster_than_the_device_is_refused(named):
    named("NVIDIA H200")
    work = Work(48_000_000, 0)  # 10 us on an H200
    beside = {"copy": [100.0], "dense": [100.0]}  # which do not count where the peak is known
    refused = limits.broken({"solution": [9.0, 9.9, 50.0], **beside}, work, "float16")
    assert refused == "9.9 us, and NVIDIA H200 needs 10 us at its peak"
    assert limits.broken({"solution": [9.0, 10.1, 10.2], **beside}, work, "float16") is None


def test_a_device_without_a_known_peak_is_held_to_what_was_measured(named):
    """Beyond the cache, by the copy; by the products, where both run on the tensor cores."""
    named("another", cache=12_000_000)
    work = Work(48_000_000, 0)

    def least(dtype="float16", **beside):
        samples = {name: [each] for name, each in beside.items()}
        for tenths in range(2000):
            if limits.broken({"solution": [tenths / 10], **samples}, work, dtype) is None:
                return tenths / 10
        return None

    assert least(copy=40.0) == 40 * 36 / 48 / limits.FASTER_COPY
    assert least(copy=40.0, dense=100.0) == 100 / limits.FASTER_PRODUCTS
    assert least(copy=40.0, dense=100.0, dtype="bfloat16") == 100 / limits.FASTER_PRODUCTS
    assert least(copy=40.0, dense=100.0, dtype="float32") == 40 * 36 / 48 / limits.FASTER_COPY
    reason = limits.broken({"solution": [1.0], "copy": [40.0]}, work, "float32")
    assert reason == "1 us, and another needs 20 us by the measured copy and products"


def test_what_fits_the_cache_or_moves_nothing_has_no_measured_floor(named):
    named("another", cache=12_000_000)
    for work in (Work(12_000_000, 0), Work(0, 0)):
        assert limits.broken({"solution": [0.1], "copy": [40.0]}, work, "float16") is None


def test_a_run_says_whose_peak_it_is_held_to():
    assert machine.peak("NVIDIA H200")["bytes_per_second"] == 4.8e12
    assert machine.peak("another") == {"source": "measured"}
    assert machine.peak(machine.device_name("cpu")) == {}
