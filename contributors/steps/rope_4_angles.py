"""Step four: each angle is computed by one thread, so that tokens can share a program.

Step three has less than 4 KiB in a program where a token has few heads. With several tokens in one
block, the thread of each head would compute its token's cosines and sines anew. Here they are a
block [tokens, features] of their own, and are copied to the heads afterwards. Threads exchange
these alone. Step three exchanges whole blocks of t where its threads have an angle each (the ladder
of docs/rope.md).
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _rope_kernel(
    t,  # [tokens, heads, WIDTH], contiguous
    freqs,  # [positions, ROTARY] float32, contiguous: an angle for each feature that turns
    out,  # as t
    tokens,
    heads,
    tokens_per_position,  # neighbours of the same position: b in sbhd, 1 in bshd
    positions,  # s; in bshd the next sequence begins at 0 again
    WIDTH: tl.constexpr,  # features of a head
    ROTARY: tl.constexpr,  # of these turn
    BACKWARD: tl.constexpr,  # t is the gradient of forward's result, out that of its t
    BLOCK_T: tl.constexpr,  # tokens of a program
    BLOCK_H: tl.constexpr,  # heads of a program, of each of its tokens
):
    """Turn each pair of features, i and i + ROTARY / 2, of t:

        forward    y1 = x1 cos f1 - x2 sin f1    y2 = x2 cos f2 + x1 sin f2
        backward   y1 = x1 cos f1 + x2 sin f2    y2 = x2 cos f2 - x1 sin f1

    Bytes: 2 * t.numel() * itemsize, and ROTARY angles for each program and token.
    """
    blocks = tl.cdiv(heads, BLOCK_H)
    first_token = tl.program_id(0) // blocks * BLOCK_T
    line = tl.arange(0, BLOCK_T * BLOCK_H)[:, None]  # a head of a token
    token = first_token + line // BLOCK_H
    head = tl.program_id(0) % blocks * BLOCK_H + line % BLOCK_H
    inside = (token < tokens) & (head < heads)
    t += (token.to(tl.int64) * heads + head) * WIDTH
    out += (token.to(tl.int64) * heads + head) * WIDTH
    BLOCK: tl.constexpr = triton.next_power_of_2(WIDTH)
    feature = tl.arange(0, BLOCK)[None, :]
    first = feature < ROTARY // 2
    partner = tl.where(first, feature + ROTARY // 2, feature - ROTARY // 2)
    x = tl.load(t + feature, mask=inside & (feature < WIDTH))
    z = tl.load(t + partner, mask=inside & (feature < ROTARY), other=0)
    # again, without heads: angles are [BLOCK_T, BLOCK]
    token = first_token + tl.arange(0, BLOCK_T)[:, None]
    position = token // tokens_per_position % positions
    turned = (token < tokens) & (feature < ROTARY)
    freqs += position.to(tl.int64) * ROTARY
    angle = tl.load(freqs + feature, mask=turned, other=0)
    # backward: each sine is that of the partner's angle, negated
    of_sin = -tl.load(freqs + partner, mask=turned, other=0) if BACKWARD else angle
    cos, sin = tl.cos(angle), tl.sin(of_sin)
    sin = tl.where(first, -sin, sin)
    cos = tl.broadcast_to(cos[:, None, :], [BLOCK_T, BLOCK_H, BLOCK])
    sin = tl.broadcast_to(sin[:, None, :], [BLOCK_T, BLOCK_H, BLOCK])
    cos, sin = tl.reshape(cos, x.shape), tl.reshape(sin, x.shape)
    y = (x.to(tl.float32) * cos + z.to(tl.float32) * sin).to(x.dtype)
    y = tl.where(feature < ROTARY, y, x)  # the others pass through
    tl.store(out + feature, y, mask=inside & (feature < WIDTH))


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, seq_first, backward):
        ctx.save_for_backward(freqs)
        ctx.options = seq_first, backward
        t, freqs = t.contiguous(), freqs.contiguous()
        out = torch.empty_like(t)
        rows, columns, heads, width = t.shape
        tokens_per_position, positions = (columns, rows) if seq_first else (1, columns)
        lines = triton.next_power_of_2(max(4096 // (width * t.element_size()), 1))
        block_h = min(triton.next_power_of_2(max(heads, 1)), lines)
        block_t = lines // block_h
        warps = triton.next_power_of_2(min(max(block_t * width // 32, 1), 4))  # an angle a thread
        if t.numel():
            programs = triton.cdiv(rows * columns, block_t) * triton.cdiv(heads, block_h)
            _rope_kernel[(programs,)](
                t, freqs, out, rows * columns, heads, tokens_per_position, positions, width,
                freqs.shape[-1], backward, block_t, block_h, num_warps=warps,
            )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx, grad):  # turning is linear: by `apply`, a second derivative is right
        seq_first, backward = ctx.options
        return _Rope.apply(grad, *ctx.saved_tensors, seq_first, not backward), None, None, None


def rope(t, freqs, *, tensor_format="sbhd"):
    """Turn the first d2 features of every head by the angles of its token's position.

    t: [s, b, h, d] (sbhd) or [b, s, h, d] (bshd); freqs: [s2, 1, 1, d2] float32, which takes no
    gradient. Returns t's shape and dtype. What does not fit is a ValueError.
    """
    if tensor_format not in ("sbhd", "bshd"):
        raise NotImplementedError(f"tensor_format {tensor_format!r}")
    length = t.shape[tensor_format.index("s")] if t.dim() == 4 else 0
    fits = t.dim() == 4 and freqs.dim() == 4 and freqs.shape[1:3] == (1, 1)
    fits = fits and freqs.shape[0] >= length and freqs.dtype == torch.float32
    fits = fits and not freqs.requires_grad and t.is_floating_point()
    if not fits or freqs.shape[-1] % 2 or not 0 < freqs.shape[-1] <= t.shape[-1]:
        shapes = f"t {list(t.shape)}, freqs {list(freqs.shape)} {freqs.dtype}"
        raise ValueError(f"rope: no {tensor_format} of {shapes}")
    return _Rope.apply(t, freqs, tensor_format == "sbhd", False)
