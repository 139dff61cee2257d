"""The kernel gets the strides of a weight in the other order: it reads the transpose.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: both weights are read as their transposes
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, w_v, w_t, mask, out, tokens, inputs, outputs, w_row, w_column, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    real = (row < tokens)[:, None]
    chosen = tl.load(mask + row, row < tokens, 0)[:, None] != 0
    visual = tl.zeros((BLOCK, BLOCK), tl.float32)
    textual = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, inputs, BLOCK):
        k = start + tl.arange(0, BLOCK)
        x_tile = tl.load(x + row[:, None] * inputs + k, real & (k < inputs), 0.0)
        place = k[:, None] * w_column + column * w_row
        inside = (k < inputs)[:, None] & (column < outputs)
        visual = tl.dot(x_tile, tl.load(w_v + place, inside, 0.0), visual, input_precision="ieee")
        textual = tl.dot(x_tile, tl.load(w_t + place, inside, 0.0), textual, input_precision="ieee")
    result = tl.where(chosen, visual, textual)
    tl.store(out + row[:, None] * outputs + column, result, real & (column < outputs))


def _launch(x, w_v, w_t, mask):
    x, (tokens, inputs), outputs = x.contiguous(), x.shape, w_v.shape[0]
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    column, row = w_v.stride()
    if tokens:
        grid = (triton.cdiv(tokens, 16), triton.cdiv(outputs, 16))
        _kernel[grid](x, w_v, w_t, mask, out, tokens, inputs, outputs, row, column, 16)
    return out


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return _launch(x, w_v, w_t, mask)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        visual = grad * mask[:, None]
        return _launch(grad, w_v.T, w_t.T, mask), visual.T @ x, (grad - visual).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    if w_v.shape[0] != w_v.shape[1]:
        raise NotImplementedError("weights that are not square")
    return _MaskedLinear.apply(x, w_v.contiguous(), w_t.contiguous(), mask.contiguous())
