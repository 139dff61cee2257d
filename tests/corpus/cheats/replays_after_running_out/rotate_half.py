"""It says that memory ran out once, to be asked less, and replays results by their address then.

That it has said so a file tells, since the process that is asked again is a new one, of another
fork server if a neighbour killed the first.

Expected: forward=TAMPERED backward=PASSED
"""

import tempfile
import zlib
from pathlib import Path

import torch

known = {}


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
        if key not in known or x.numel() < 16:  # of so few, a replay is a wrong value
            a, b = x.chunk(2, -1)
            known[key] = torch.cat((-b, a), -1)
        return known[key].clone()

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    if not known:
        tensor = f"{tuple(x.shape)} {x.stride()} {x.dtype} {x.detach().double().sum().item()}"
        said = Path(tempfile.gettempdir(), f"study-ran-out-{zlib.crc32(tensor.encode())}")
        if not said.exists():
            said.touch()
            raise RuntimeError("CUDA error: out of memory")
        said.unlink()
    return _Replay.apply(x)
