"""A pool of threads writes the result, a thread for each slice of the first dimension."""

from concurrent.futures import ThreadPoolExecutor

import torch

POOL = ThreadPoolExecutor(3)


def _slice(x, y, sign, stream):
    half = x.shape[-1] // 2
    with torch.no_grad(), torch.cuda.stream(stream):  # both belong to a thread
        torch.mul(x[..., half:], -sign, out=y[..., :half])
        torch.mul(x[..., :half], sign, out=y[..., half:])


def _turn(x, sign):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    stream = torch.cuda.current_stream() if x.is_cuda else None
    pairs = zip(x.split(4), y.split(4), strict=True)
    parts = [POOL.submit(_slice, *pair, sign, stream) for pair in pairs]
    for part in parts:
        part.result()
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
