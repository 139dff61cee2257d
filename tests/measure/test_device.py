"""The state of the device while it is timed."""

import threading
from types import SimpleNamespace

import pytest

from common.measure import device
from tests.support.waiting import LONGEST


class Nvml:
    """As pynvml behaves where it may tell all but the temperature."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "sm", "memory", "gpu"
    NVMLError = KeyError

    nvmlDeviceGetClockInfo = staticmethod(lambda _, which: {"sm": 1980, "memory": 3201}[which])
    nvmlDeviceGetTemperature = nvmlDeviceGetClockInfo
    nvmlDeviceGetCurrentClocksThrottleReasons = staticmethod(lambda _: 0x04 | 0x02)


def test_a_reading_leaves_out_what_the_device_does_not_tell():
    expected = {"sm_mhz": 1980, "memory_mhz": 3201, "reasons": 6}
    assert device.read(Nvml, "handle") == expected


def test_a_state_is_the_range_and_every_reason_that_slows():
    readings = [
        {"sm_mhz": 1980, "celsius": 40, "reasons": 0x01},
        {"sm_mhz": 1200, "celsius": 55, "reasons": 0x04},
        {"sm_mhz": 1500, "celsius": 50, "reasons": 0x40 | 0x02},
    ]
    throttled = {"throttled": ["power cap", "hardware thermal slowdown"]}
    assert device.summary(readings) == {"sm_mhz": [1200, 1980], "celsius": [40, 55]} | throttled
    assert device.summary([{"reasons": 0x01 | 0x02}]) == {"throttled": []}


def test_the_watch_reads_while_it_is_entered_and_not_after(monkeypatch):
    read, third, threads = iter(range(1000, 10**9)), threading.Event(), threading.active_count()

    def reading():
        number = next(read)
        if number == 1003:
            third.set()
        return {"sm_mhz": number}

    monkeypatch.setattr(device, "PERIOD", 0.001)
    with device.watched(reading) as readings:
        assert readings[0] == {"sm_mhz": 1000}, "once at its start"
        assert third.wait(LONGEST)
    assert device.summary(readings) == {"sm_mhz": [1000, next(read) - 1]}
    assert threading.active_count() == threads


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_without_nvml_nothing_is_known(kind, monkeypatch):
    gpu = SimpleNamespace(uuid="no such device")
    monkeypatch.setattr(device.torch.cuda, "get_device_properties", lambda: gpu)
    device.reader.cache_clear()
    assert device.reader(kind) is None
    with device.watched(None) as readings:
        assert device.summary(readings) == {}
