"""Paired angles alone; the two features of an interleaved pair are exchanged.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the sine has the other sign where interleaved
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, cos, sin, starts, s, h, D: tl.constexpr, HALF: tl.constexpr,
            INTERLEAVED: tl.constexpr, STARTS: tl.constexpr, BACKWARD: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    position, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = position
    if STARTS:
        place += tl.load(starts + batch)
    pair = tl.arange(0, BLOCK)
    mask = pair < HALF
    c = tl.load(cos + place * HALF + pair, mask)
    w = tl.load(sin + place * HALF + pair, mask)
    if BACKWARD:
        w = -w
    row = (batch * s + position) * h + head
    if INTERLEAVED:
        first, second = row * D + 2 * pair + 1, row * D + 2 * pair
    else:
        first, second = row * D + pair, row * D + pair + HALF
    a = tl.load(x + first, mask).to(tl.float32)
    b = tl.load(x + second, mask).to(tl.float32)
    tl.store(y + first, a * c - b * w, mask)
    tl.store(y + second, b * c + a * w, mask)


def _launch(x, cos, sin, starts, interleaved, backward):
    x = x.contiguous()
    y = x.clone()  # holds the features that pass through
    b, s, h, d = x.shape
    if x.numel():
        half = cos.shape[-1]
        _kernel[s, h, b](
            x, y, cos, sin, starts, s, h, d, half, interleaved, starts is not None, backward,
            triton.next_power_of_2(half),
        )  # fmt: skip
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *given):
        ctx.given = given
        return _launch(x, *given, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.given, True), None, None, None, None


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs.flatten(1)
    first, second = (angles[:, ::2], angles[:, 1::2]) if interleaved else angles.chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    cos, sin = first.cos().contiguous(), first.sin().contiguous()
    starts = start_positions if start_positions is None else start_positions.contiguous()
    x = t.transpose(0, 1) if tensor_format == "sbhd" else t
    y = _Rope.apply(x, cos, sin, starts, interleaved)
    return y.transpose(0, 1) if tensor_format == "sbhd" else y
