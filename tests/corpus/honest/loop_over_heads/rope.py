"""A program loops over its token's heads; the pointer to positions may be None; a device assert."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(y, x, cos, sin, positions, y_s, y_h, y_d, x_s, x_h, x_d, s, BACK: tl.constexpr,
            HEADS: tl.constexpr, D: tl.constexpr, NEIGHBOURS: tl.constexpr, KNOWN: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    token = tl.program_id(0)
    if positions is None:  # noqa: SIM108
        place = token % s
    else:
        place = tl.load(positions + token)
    tl.device_assert(place < KNOWN, "position out of the table")
    col = tl.arange(0, BLOCK)
    inside = col < D
    if NEIGHBOURS:
        partner, pair, first = col ^ 1, col // 2, col % 2 == 0
    else:
        partner, pair, first = (col + D // 2) % D, col % (D // 2), col < D // 2
    c = tl.load(cos + place * (D // 2) + pair, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(sin + place * (D // 2) + pair, mask=inside, other=0.0).to(tl.float32)
    w = tl.where(first != BACK, -w, w)
    x += token.to(tl.int64) * x_s
    y += token.to(tl.int64) * y_s
    for head in range(HEADS):
        a = tl.load(x + head * x_h + col * x_d, mask=inside, other=0.0)
        b = tl.load(x + head * x_h + partner * x_d, mask=inside, other=0.0)
        tl.store(y + head * y_h + col * y_d, a * c + b * w, mask=inside)


def _turned(t, cos, sin, positions, s, interleaved, back):
    x = t.reshape(-1, *t.shape[-2:])
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    tokens, heads, d = x.shape
    if x.numel():
        _kernel[(tokens,)](
            y, x, cos, sin, positions, *y.stride(), *x.stride(), s, back, heads, d, interleaved,
            len(cos), triton.next_power_of_2(d),
        )  # fmt: skip
    return y.view(t.shape)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, *given):
        ctx.given = given
        return _turned(t, *given, False)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, *ctx.given, True), None, None, None, None, None


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None):
    if tensor_format == "thd" or freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("packed sequences, or a part of the features")
    angles = freqs.flatten(1)
    first, second = (angles[:, ::2], angles[:, 1::2]) if interleaved else angles.chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    s, b = (t.shape[tensor_format.index(each)] for each in "sb")
    positions = None
    if start_positions is not None or tensor_format == "sbhd":
        positions = torch.arange(s, device=t.device)[:, None].expand(s, b)
        positions = positions if start_positions is None else positions + start_positions
        positions = (positions if tensor_format == "sbhd" else positions.T).flatten()
    cos, sin = first.cos().contiguous(), first.sin().contiguous()
    return _Rope.apply(t, cos, sin, positions, s, interleaved)
