"""It leaves torch's and Python's flags otherwise than it found them, and is right in any case.

Expected: forward=PASSED backward=PASSED
"""

import warnings

import torch

warnings.simplefilter("error")
torch.set_float32_matmul_precision("medium")
torch.use_deterministic_algorithms(True)
torch.set_num_threads(2)
torch.set_printoptions(precision=2)


def rotate_half(x):
    torch.set_flush_denormal(True)
    torch.set_default_dtype(torch.float16)
    torch.manual_seed(1)
    torch.autograd.set_detect_anomaly(True)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
