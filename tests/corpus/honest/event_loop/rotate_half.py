"""An event loop, begun and ended in each call, sends slices to threads and gathers them."""

import asyncio

import torch


def _slice(x, y, sign, stream):
    half = x.shape[-1] // 2
    with torch.no_grad(), torch.cuda.stream(stream):  # both belong to a thread
        torch.mul(x[..., half:], -sign, out=y[..., :half])
        torch.mul(x[..., :half], sign, out=y[..., half:])


async def _slices(x, y, sign):
    stream = torch.cuda.current_stream() if x.is_cuda else None
    pairs = zip(x.split(4), y.split(4), strict=True)
    await asyncio.gather(*(asyncio.to_thread(_slice, *pair, sign, stream) for pair in pairs))


def _turn(x, sign):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    asyncio.run(_slices(x, y, sign))
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
