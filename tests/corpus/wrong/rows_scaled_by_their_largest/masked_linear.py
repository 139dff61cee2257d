"""Each row is divided by its largest element, which for a row of zeros is NaN.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch


def _scaled(x, weight):
    largest = x.detach().double().abs().amax(1, keepdim=True)
    return x.double() / largest @ weight.double().T * largest


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return torch.where(mask[:, None], _scaled(x, w_v), _scaled(x, w_t)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x = torch.where(mask[:, None], grad @ w_v, grad @ w_t)
        return d_x, (grad * mask[:, None]).T @ x, (grad * ~mask[:, None]).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
