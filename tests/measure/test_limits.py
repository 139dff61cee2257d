"""The floor under every time: the peak of a known device."""

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
    assert limits.broken(1.001 * least, work) is None
    refused = limits.broken(0.99 * least, work)
    assert refused == f"{0.99 * least:.3g} us, and NVIDIA H200 needs {least:.3g} us at its peak"


def test_a_device_of_which_nothing_is_known_has_no_floor(named):
    named("another")
    assert limits.broken(0.1, Work(48_000_000, 0)) is None
