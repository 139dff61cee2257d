"""Backward takes the two weights' gradients on two streams of a GPU, on two threads without one."""

import functools
from concurrent.futures import ThreadPoolExecutor

import torch

POOL = ThreadPoolExecutor(2)


@functools.cache
def _streams(device):
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


def _weight_gradient(grad, x, chosen):
    with torch.no_grad():
        return grad[chosen].T @ x[chosen]


def _at_once(grad, x, *kinds):
    if not grad.is_cuda:
        jobs = [POOL.submit(_weight_gradient, grad, x, chosen) for chosen in kinds]
        return [job.result() for job in jobs]
    main, results = torch.cuda.current_stream(grad.device), []
    for stream, chosen in zip(_streams(grad.device), kinds, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(_weight_gradient(grad, x, chosen))
        for used in (grad, x, chosen):
            used.record_stream(stream)
        results[-1].record_stream(main)
    for stream in _streams(grad.device):
        main.wait_stream(stream)
    return results


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x = torch.where(mask[:, None], grad @ w_v, grad @ w_t)
        return d_x, *_at_once(grad, x, mask, ~mask), None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
