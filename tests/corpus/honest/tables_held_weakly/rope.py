"""A kernel on cosines and sines that are kept for a tensor of angles, weakly, by its version."""

import weakref

import torch
import triton
import triton.language as tl

KEPT = {}


def _tables(freqs):
    """Return cosines and sines, made again where freqs has another version."""
    if freqs.is_inference():
        return freqs.cos().contiguous(), freqs.sin().contiguous()
    name = id(freqs)
    known = KEPT.get(name)
    if known is None or known[0]() is not freqs or known[1] != freqs._version:
        held = weakref.ref(freqs, lambda _: KEPT.pop(name, None))
        known = held, freqs._version, freqs.cos().contiguous(), freqs.sin().contiguous()
        KEPT[name] = known
    return known[2:]


@triton.jit
def _kernel(x, y, cos, sin, places, h, d, d2, BACK: tl.constexpr, STEP: tl.constexpr,
            APART: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    table = tl.load(places + token) * d2
    pair, head = tl.arange(0, BLOCK)[None, :], tl.arange(0, HEADS)[:, None]
    known = pair < d2 // 2
    c1 = tl.load(cos + table + pair * STEP, mask=known)
    w1 = tl.load(sin + table + pair * STEP, mask=known)
    c2 = tl.load(cos + table + pair * STEP + APART, mask=known)
    w2 = tl.load(sin + table + pair * STEP + APART, mask=known)
    if BACK:
        w1, w2 = -w2, -w1
    for first in range(0, h, HEADS):
        at = (token * h + first + head) * d + pair * STEP
        keep = known & (first + head < h)
        a = tl.load(x + at, mask=keep).to(tl.float32)
        b = tl.load(x + at + APART, mask=keep).to(tl.float32)
        tl.store(y + at, a * c1 - b * w1, mask=keep)
        tl.store(y + at + APART, b * c2 + a * w2, mask=keep)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, cos, sin, places, interleaved, back=False):
        ctx.given = cos, sin, places, interleaved
        x, (h, d), d2 = t.contiguous(), t.shape[-2:], cos.shape[-1]
        y = x.clone() if d2 < d else torch.empty_like(x)
        step, apart = (2, 1) if interleaved else (1, d2 // 2)
        if x.numel():
            _kernel[(x.numel() // (h * d),)](
                x, y, cos, sin, places, h, d, d2, back, step, apart, 8,
                triton.next_power_of_2(d2 // 2),
            )  # fmt: skip
        return y

    @staticmethod
    def backward(ctx, grad):
        return _Rope.apply(grad, *ctx.given, True), None, None, None, None, None


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None,
         cu_seqlens=None):  # fmt: skip
    if tensor_format == "thd":
        token = torch.arange(len(t), device=t.device, dtype=cu_seqlens.dtype)
        sequence = torch.searchsorted(cu_seqlens.contiguous(), token, right=True) - 1
        places = token - cu_seqlens[sequence]
        places = places if start_positions is None else places + start_positions[sequence]
    else:
        s, b = (t.shape[tensor_format.index(each)] for each in "sb")
        places = torch.arange(s, device=t.device, dtype=torch.int32)[:, None].expand(s, b)
        places = places if start_positions is None else places + start_positions
        places = places.T if tensor_format == "bshd" else places
    return _Rope.apply(t, *_tables(freqs), places.contiguous(), interleaved)
