"""On a GPU a CUDA graph for each shape and dtype is captured, fed a copy of x and replayed."""

import functools

import torch


def _plain(x, sign):
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-sign * x2, sign * x1), -1)


@functools.cache
def _captured(shape, dtype, device, sign):
    held = torch.zeros(shape, dtype=dtype, device=device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        _plain(held, sign)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = _plain(held, sign)
    return graph, held, result


def _turn(x, sign):
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    if not x.is_cuda or not x.numel() or capturing:
        return _plain(x, sign)
    graph, held, result = _captured(x.shape, x.dtype, x.device, sign)
    held.copy_(x)
    graph.replay()
    return result.clone()


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
