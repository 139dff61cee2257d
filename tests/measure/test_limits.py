"""The floor under every time: the peak of a known device, or the limits measured on another."""

from __future__ import annotations

import pytest
import torch

from common.measure import limits
from common.peaks import PEAKS
from common.spec import Work

H200 = PEAKS["NVIDIA H200"]


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
        (Work(2050, 1), 1e6 * 2000 / H200.bytes_per_second),
        (Work(0, 10**15), 1e6 * 1e15 / H200.flops_per_second["bfloat16"]),
    ],
)
def test_a_known_peak_is_the_larger_of_both_and_forgives_the_cache(named, work, least):
    named("NVIDIA H200", cache=50)
    beside = {"copy": [1e9], "dense": [1e9]}  # which do not count where the peak is known
    assert limits.broken({"solution": [1.001 * least] * 2 + [0.0], **beside}, work, "x") is None
    refused = limits.broken({"solution": [0.9 * least, 0.99 * least, 1e9]}, work, "float16")
    assert refused == f"{0.99 * least:.3g} us, and NVIDIA H200 needs {least:.3g} us at its peak"


@pytest.mark.parametrize(
    ("samples", "dtype", "least"),
    [
        ({"copy": 40.0}, "float16", 40 * 36 / 48 / limits.FASTER_COPY),
        ({"copy": 40.0, "dense": 100.0}, "float16", 100 / limits.FASTER_PRODUCTS),
        ({"copy": 40.0, "dense": 100.0}, "bfloat16", 100 / limits.FASTER_PRODUCTS),
        ({"copy": 40.0, "dense": 100.0}, "float32", 40 * 36 / 48 / limits.FASTER_COPY),
    ],
)
def test_another_device_is_held_to_what_was_measured(named, samples, dtype, least):
    """Beyond the cache, by the copy; by the products, where both run on the tensor cores."""
    named("another", cache=12_000_000)
    work, beside = Work(48_000_000, 0), {name: [each] for name, each in samples.items()}
    assert limits.broken({"solution": [1.001 * least], **beside}, work, dtype) is None
    reason = limits.broken({"solution": [0.999 * least], **beside}, work, dtype)
    assert f"another needs {least:.3g} us by the measured copy and products" in reason


@pytest.mark.parametrize("work", [Work(12_000_000, 0), Work(0, 0)])
def test_what_fits_the_cache_or_moves_nothing_has_no_measured_floor(named, work):
    named("another", cache=12_000_000)
    assert limits.broken({"solution": [0.1], "copy": [40.0]}, work, "float16") is None
