"""Its import changes settings for good: threads, determinism, faulthandler, atexit, logging."""

import atexit
import faulthandler
import gc
import logging
import warnings

import torch

faulthandler.enable()
atexit.register(gc.collect)
gc.set_threshold(5_000, 20, 20)
logging.basicConfig(level=logging.WARNING)
warnings.simplefilter("ignore")
torch.set_num_threads(1)
torch.set_printoptions(precision=3)
torch.set_float32_matmul_precision("highest")
torch.backends.cudnn.benchmark = True
torch.use_deterministic_algorithms(True, warn_only=True)
torch.autograd.set_multithreading_enabled(False)
torch.manual_seed(0)


def rotate_half(x, *, interleaved=False):
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-x2, x1), -1)
