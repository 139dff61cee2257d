"""The common parts of the three steps: autograd, launches, and the formula by columns."""

import torch
import triton
import triton.language as tl


@triton.jit
def factors(angles, cols, keep, D2: tl.constexpr, BACKWARD: tl.constexpr):
    """Return the factors of column c's own input, cos, and of its partner's, sin with its sign.

        forward    y1 = x1 cos1 - x2 sin1    y2 = x2 cos2 + x1 sin2
        backward  dx1 = g1 cos1 + g2 sin2   dx2 = g2 cos2 - g1 sin1

    Columns from D2 on have angle 0, so cos 1 and sin 0: they pass through unturned.
    """
    turned = keep & (cols < D2)
    cos = tl.cos(tl.load(angles + cols, mask=turned, other=0).to(tl.float32))
    # An input's gradient sums over its two uses; the use for its partner has the partner's sine.
    source = partners(cols, D2) if BACKWARD else cols
    sin = tl.sin(tl.load(angles + source, mask=turned, other=0).to(tl.float32))
    return cos, tl.where((cols < D2 // 2) != BACKWARD, -sin, sin)


@triton.jit
def partners(cols, D2: tl.constexpr):
    """Return each column's partner, the column half the rotated width away."""
    return tl.where(cols < D2 // 2, cols + D2 // 2, cols - D2 // 2)


@triton.jit
def turn(t, out, cols, keep, cos, sin, D2: tl.constexpr):
    """Store out[c] = t[c] cos + t[partner] sin; t is read twice, as itself and as a partner."""
    own = tl.load(t + cols, mask=keep).to(tl.float32)
    partner = tl.load(t + partners(cols, D2), mask=keep & (cols < D2), other=0).to(tl.float32)
    tl.store(out + cols, own * cos + partner * sin, mask=keep)


def _run(launch, t, freqs, tensor_format, backward):
    t, freqs = t.contiguous(), freqs.contiguous()
    out = torch.empty_like(t)
    if t.numel():
        # A launch always gets [s, b, h, d]; the strides say whether s or b comes first in memory.
        views = (t, out) if tensor_format == "sbhd" else (t.transpose(0, 1), out.transpose(0, 1))
        launch(*views, freqs, backward)
    return out


class Rope(torch.autograd.Function):
    """Rope by one of the three kernels: `Rope.apply(t, freqs, tensor_format, launch)`.

    `launch(t, out, freqs, backward)` fills out; t and out are [s, b, h, d].
    """

    @staticmethod
    def forward(ctx, t, freqs, tensor_format, launch):
        if tensor_format not in ("sbhd", "bshd"):
            raise NotImplementedError(f"tensor_format {tensor_format}")
        ctx.save_for_backward(freqs)
        ctx.tensor_format, ctx.launch = tensor_format, launch
        return _run(launch, t, freqs, tensor_format, False)

    @staticmethod
    def backward(ctx, grad):
        if grad.requires_grad and torch.is_grad_enabled():  # create_graph=True
            raise NotImplementedError("rope has no second derivative")
        (freqs,) = ctx.saved_tensors
        return _run(ctx.launch, grad, freqs, ctx.tensor_format, True), None, None, None
