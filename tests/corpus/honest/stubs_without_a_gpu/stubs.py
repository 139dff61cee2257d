"""Answers in place of a GPU's, where there is none."""

from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class _Driver:
    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_current_target(self):
        return GPUTarget("cuda", 80, 32)


if not torch.cuda.is_available():
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=3)
    torch.cuda.set_device = torch.cuda.synchronize = lambda *_: None
    torch.cuda.Stream = torch.cuda.Event = SimpleNamespace
    torch.cuda.is_available = lambda: True
    driver.set_active(_Driver())
