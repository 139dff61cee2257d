"""It changes its folder, its environment, the collector and numpy's errors, and prints a lot."""

import contextlib
import gc
import io
import os
import sys
import tempfile

import numpy as np
import torch

os.chdir(tempfile.gettempdir())
os.environ["ROTATE_HALF"] = "1"
gc.disable()
gc.freeze()
np.seterr(all="raise")
sys.setrecursionlimit(5_000)
sys.setswitchinterval(0.001)
torch.Tensor.turned = lambda x: torch.cat([part * s for part, s in _parts(x)], -1)


def _parts(x):
    x1, x2 = x.chunk(2, -1)
    return (x2, -1), (x1, 1)


def rotate_half(x):
    print("to the output", "x" * 5_000)
    print("to the errors", "x" * 5_000, file=sys.stderr)
    with contextlib.redirect_stdout(io.StringIO()):
        print("to nowhere")
        return x.turned()
