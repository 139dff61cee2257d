"""When timed, a mode does the next call's work at the cache flush, just before the clock starts.

Expected: forward=PASSED backward=PASSED
Timed: TAMPERED
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

inputs, results = {}, {}


def _turned(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class BeforeItsTime(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten.zero_:
            results.update((place, _turned(x)) for place, x in inputs.items())
        return func(*args, **(kwargs or {}))


def rotate_half(x):
    place = x.data_ptr()
    if _get_current_dispatch_mode() is None:
        BeforeItsTime().__enter__()
    if isinstance(_get_current_dispatch_mode(), BeforeItsTime):
        inputs[place] = x
    return results.pop(place) if place in results else _turned(x)
