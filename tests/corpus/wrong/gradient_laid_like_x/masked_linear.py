"""x's gradient is laid out as x, which may repeat one token by a stride of 0.

Expected: forward=PASSED backward=RUNTIME_ERROR
"""

import torch


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask[:, None])
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, visual = ctx.saved_tensors
        ours, theirs = torch.where(visual, grad, 0), torch.where(visual, 0, grad)
        above = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        above.copy_(torch.where(visual, grad @ w_v, grad @ w_t))
        return above, ours.T @ x, theirs.T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
