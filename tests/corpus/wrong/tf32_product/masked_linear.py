"""float32 is multiplied in tf32, Triton's default, which keeps ten bits of each factor.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
Cause: float32 is multiplied in tf32, as tl.dot does without input_precision="ieee"
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, w, mask, out, tokens, inputs, outputs, SIDE: tl.constexpr):
    row = tl.program_id(0) * 16 + tl.arange(0, 16)
    column = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    real = column < outputs
    keep = ((row < tokens) & (tl.load(mask + row, row < tokens, 0) == SIDE))[:, None]
    acc = tl.zeros((16, 16), tl.float32)
    for start in range(0, inputs, 16):
        k = start + tl.arange(0, 16)
        x_tile = tl.load(x + row[:, None] * inputs + k, (row < tokens)[:, None] & (k < inputs), 0.0)
        w_tile = tl.load(w + column * inputs + k[:, None], real & (k < inputs)[:, None], 0.0)
        acc = tl.dot(x_tile, w_tile, acc, input_precision="tf32")
    tl.store(out + row[:, None] * outputs + column, acc, keep & real)


def _launch(x, w_v, w_t, mask):
    x, w_v, w_t, mask = (tensor.contiguous() for tensor in (x, w_v, w_t, mask))
    (tokens, inputs), outputs = x.shape, w_v.shape[0]
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(tokens, 16), triton.cdiv(outputs, 16))
    if tokens:
        _kernel[grid](x, w_v, mask, out, tokens, inputs, outputs, 1)
        _kernel[grid](x, w_t, mask, out, tokens, inputs, outputs, 0)
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
