"""The state of a GPU while it is timed, as NVML tells it."""

import pytest
import torch

from common.measure import device
from tests.support.on_gpu import measured_on_gpu


def test_the_devices_state_is_known_where_nvml_is():
    pytest.importorskip("pynvml")
    read = device.reader(str(torch.cuda.get_device_properties().uuid))
    assert read is not None
    with device.Monitor(read) as watch:
        measured_on_gpu(lambda x: x.clone(), lambda x: x.clone())
    assert 100 < watch.state["sm_mhz"][1] < 5000
    assert 0 < watch.state["celsius"][1] < 120
