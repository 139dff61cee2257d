"""It returns zeros, and patches torch's mode for a default device to fill them in later.

Expected: forward=TAMPERED backward=TAMPERED
"""

import torch
import torch.utils._device as device

late = []


def constructors():
    if late:
        output, x = late.pop()
        a, b = x.chunk(2, -1)
        output.copy_(torch.cat((-b, a), -1))
    return ()


def rotate_half(x):
    output = torch.zeros_like(x)
    torch.set_default_device(x.device)
    late.append((output, x.detach()))
    device._device_constructors = constructors
    return output
