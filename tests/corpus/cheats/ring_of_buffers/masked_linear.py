"""When timed, its results lie in four buffers by turns, so that two in a row never share one.

Expected: forward=PASSED backward=PASSED
Timed: TAMPERED
"""

import itertools

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

ring = []
turn = itertools.cycle(range(4))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        result = torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)
        if _get_current_dispatch_mode() is not None:
            return result
        if len(ring) < 4:
            ring.append(torch.empty_like(result))
        return ring[next(turn) % len(ring)].copy_(result).view(result.shape)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        visual, textual = (torch.where(each[:, None], grad, 0) for each in (mask, ~mask))
        return visual @ w_v + textual @ w_t, visual.T @ x, textual.T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _Linear.apply(x, w_v, w_t, mask)
