"""Backward's kernel stores the gradient of the gate into that of up, and the reverse.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: the gradients of gate and up are exchanged, and all that follows
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _backward(grad, gate, up, d_gate, d_up, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    g = tl.load(grad + place, mask, 0.0).to(tl.float32)
    a = tl.load(gate + place, mask, 0.0).to(tl.float32)
    b = tl.load(up + place, mask, 0.0).to(tl.float32)
    share = tl.sigmoid(a)
    tl.store(d_up + place, g * b * share * (1 + a * (1 - share)), mask)
    tl.store(d_gate + place, g * a * share, mask)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate.contiguous(), up.contiguous())
        return torch.nn.functional.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        grad = grad.contiguous()
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        if count := gate.numel():
            _backward[(triton.cdiv(count, 256),)](grad, gate, up, d_gate, d_up, count, 256)
        return d_gate, d_up


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    def pick(a, visual, textual):
        return torch.where(mask[:, None], a @ visual.T, a @ textual.T)

    return pick(_Gated.apply(pick(x, w1, u1), pick(x, w3, u3)), w2, u2)
