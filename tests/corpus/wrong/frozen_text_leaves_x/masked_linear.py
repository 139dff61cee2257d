"""Where the visual weight alone is trained, backward leaves the textual tokens of x out too.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
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
        if ctx.needs_input_grad[1] and not ctx.needs_input_grad[2]:
            return ours @ w_v, ours.T @ x, None, None
        return torch.where(visual, grad @ w_v, grad @ w_t), ours.T @ x, theirs.T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
