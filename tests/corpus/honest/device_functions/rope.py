"""Device functions in a helper module, with a tuple of strides as one argument."""

import torch
import triton
import triton.language as tl
from turns import angles_of, turn


@triton.jit
def _kernel(
    t, freqs, out, t_strides, out_strides, freqs_strides, heads, inner, outer_is_s,
    D: tl.constexpr, D2: tl.constexpr, TRANSPOSED: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """One token: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2"""
    token = tl.program_id(0).to(tl.int64)
    outer, index = token // inner, token % inner
    position = tl.where(outer_is_s != 0, outer, index)
    t += outer * t_strides[0] + index * t_strides[1]
    out += outer * out_strides[0] + index * out_strides[1]
    pair = tl.arange(0, BLOCK)[None, :]
    cos1, cos2, sin1, sin2 = angles_of(freqs, position, pair, freqs_strides, D2, TRANSPOSED)
    for first in tl.static_range(0, HEADS, 8):
        head = first + tl.arange(0, 8)[:, None]
        keep = (head < heads) & (pair < D2 // 2)
        x1, x2 = t + head * t_strides[2] + pair * t_strides[3], D2 // 2 * t_strides[3]
        y1, y2 = turn(tl.load(x1, mask=keep), tl.load(x1 + x2, mask=keep), cos1, cos2, sin1, sin2)
        at = out + head * out_strides[2] + pair * out_strides[3]
        tl.store(at, y1, mask=keep)
        tl.store(at + D2 // 2 * out_strides[3], y2, mask=keep)
        if D > D2:
            col = D2 + tl.arange(0, REST)[None, :]
            keep = (head < heads) & (col < D)
            rest = tl.load(t + head * t_strides[2] + col * t_strides[3], mask=keep)
            tl.store(out + head * out_strides[2] + col * out_strides[3], rest, mask=keep)


def _launch(t, freqs, s_first, transposed):
    out = torch.empty_like(t)
    if t.numel():
        outer, inner, heads, d = t.shape
        d2 = freqs.shape[-1]
        block, rest = triton.next_power_of_2(d2 // 2), triton.next_power_of_2(max(d - d2, 1))
        _kernel[(outer * inner,)](
            t, freqs, out, t.stride(), out.stride(), freqs.stride(), heads, inner, int(s_first),
            d, d2, transposed, triton.next_power_of_2(heads), block, rest,
        )  # fmt: skip
    return out


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, s_first):
        ctx.save_for_backward(freqs)
        ctx.s_first = s_first
        return _launch(t, freqs, s_first, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.saved_tensors, ctx.s_first, True), None, None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    return _Rope.apply(t, freqs, tensor_format == "sbhd")
