"""What the three variants share: the way from autograd to a launch, and the formula by columns."""

import torch
import triton
import triton.language as tl


@triton.jit
def factors(angles, cols, keep, D2: tl.constexpr, BACKWARD: tl.constexpr):
    """What column c of the result takes of its own input (cos) and of its partner's (sin).

    forward   y1 = x1 cos1 - x2 sin1    y2 = x2 cos2 + x1 sin2
    backward  x1 = y1 cos1 + y2 sin2    x2 = y2 cos2 - y1 sin1    (gradients of y1 and y2)

    Columns from D2 on have angle 0: cos 1, sin 0, so they pass through unturned.
    """
    turned = keep & (cols < D2)
    cos = tl.cos(tl.load(angles + cols, mask=turned, other=0).to(tl.float32))
    # Backward sums over where an input went, and it went to its partner by the partner's sine.
    source = partners(cols, D2) if BACKWARD else cols
    sin = tl.sin(tl.load(angles + source, mask=turned, other=0).to(tl.float32))
    return cos, tl.where((cols < D2 // 2) != BACKWARD, -sin, sin)


@triton.jit
def partners(cols, D2: tl.constexpr):
    """The column that each column is turned with."""
    return tl.where(cols < D2 // 2, cols + D2 // 2, cols - D2 // 2)


@triton.jit
def turn(t, out, cols, keep, cos, sin, D2: tl.constexpr):
    """out[c] = t[c] cos + t[partner] sin: each element of t is read as itself and as a partner."""
    own = tl.load(t + cols, mask=keep).to(tl.float32)
    partner = tl.load(t + partners(cols, D2), mask=keep & (cols < D2), other=0).to(tl.float32)
    tl.store(out + cols, own * cos + partner * sin, mask=keep)


def _run(launch, t, freqs, tensor_format, backward):
    t, freqs = t.contiguous(), freqs.contiguous()
    out = torch.empty_like(t)
    if t.numel():
        # A launch always sees [s, b, h, d]; which of s and b comes first is a matter of strides.
        views = (t, out) if tensor_format == "sbhd" else (t.transpose(0, 1), out.transpose(0, 1))
        launch(*views, freqs, backward)
    return out


class Rope(torch.autograd.Function):
    """`Rope.apply(t, freqs, tensor_format, launch)`; launch(t, out, freqs, backward) fills out."""

    @staticmethod
    def forward(ctx, t, freqs, tensor_format, launch):
        if tensor_format not in ("sbhd", "bshd"):
            raise NotImplementedError(f"tensor_format {tensor_format}")
        ctx.save_for_backward(freqs)
        ctx.tensor_format, ctx.launch = tensor_format, launch
        return _run(launch, t, freqs, tensor_format, False)

    @staticmethod
    def backward(ctx, grad):
        (freqs,) = ctx.saved_tensors
        return _run(ctx.launch, grad, freqs, ctx.tensor_format, True), None, None, None
