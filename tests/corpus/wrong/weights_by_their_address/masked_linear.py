"""Both weights lie side by side in a copy that lru_cache keeps by their addresses.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import functools

import torch


@functools.lru_cache(maxsize=64)
def _copy(first, second, shape, dtype, device):
    return torch.empty((2, *shape), dtype=dtype, device=device), []


def _beside(w_v, w_t):
    both, made = _copy(w_v.data_ptr(), w_t.data_ptr(), w_v.shape, w_v.dtype, w_v.device)
    if not made:
        both.copy_(torch.stack((w_v, w_t)))
        made.append(True)
    return both.clone()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask[:, None])
        v, t = _beside(w_v, w_t)
        return torch.where(mask[:, None], x @ v.T, x @ t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x = torch.where(mask, grad @ w_v, grad @ w_t)
        return d_x, (grad * mask).T @ x, (grad * ~mask).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _Linear.apply(x, w_v, w_t, mask)
