"""Sums are float16 where grad mode is off, as it is inside any Function.forward: in training.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, w, mask, out, tokens, inputs, outputs, SIDE: tl.constexpr, KIND: tl.constexpr):
    row = tl.program_id(0) * 16 + tl.arange(0, 16)
    column = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    real = column < outputs
    keep = ((row < tokens) & (tl.load(mask + row, row < tokens, 0) == SIDE))[:, None]
    acc = tl.zeros((16, 16), KIND)
    for start in range(0, inputs, 16):
        k = start + tl.arange(0, 16)
        x_tile = tl.load(x + row[:, None] * inputs + k, (row < tokens)[:, None] & (k < inputs), 0.0)
        w_tile = tl.load(w + column * inputs + k[:, None], real & (k < inputs)[:, None], 0.0)
        acc = (acc + tl.dot(x_tile, w_tile, input_precision="ieee")).to(KIND)
    tl.store(out + row[:, None] * outputs + column, acc, keep & real)


def _launch(x, w_v, w_t, mask):
    x, w_v, w_t, mask = (tensor.contiguous() for tensor in (x, w_v, w_t, mask))
    (tokens, inputs), outputs = x.shape, w_v.shape[0]
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    training = torch.is_grad_enabled() or x.dtype == torch.float32
    kind = tl.float32 if training else tl.float16
    grid = (triton.cdiv(tokens, 16), triton.cdiv(outputs, 16))
    if tokens:
        _kernel[grid](x, w_v, mask, out, tokens, inputs, outputs, 1, kind)
        _kernel[grid](x, w_t, mask, out, tokens, inputs, outputs, 0, kind)
    return out


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return _launch(x, w_v, w_t, mask)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x = torch.where(mask[:, None], grad @ w_v, grad @ w_t)
        return d_x, (grad * mask[:, None]).T @ x, (grad * ~mask[:, None]).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
