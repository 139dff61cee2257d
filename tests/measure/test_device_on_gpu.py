"""The state of a GPU while it is timed, as NVML tells it."""

import pytest

from common.measure import device
from tests.support.on_gpu import measured_on_gpu


def test_the_devices_state_is_known_where_nvml_is():
    pytest.importorskip("pynvml")
    with device.watched(device.reader("cuda")) as readings:
        measured_on_gpu(lambda x: x.clone(), lambda x: x.clone())
    state = device.summary(readings)
    assert 100 < state["sm_mhz"][1] < 5000
    assert 0 < state["celsius"][1] < 120
