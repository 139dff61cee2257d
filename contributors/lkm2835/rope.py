"""Tiles of positions x heads; partners found by a modulo.

A tile has the whole width of a head. A feature's partner lies half the rotated width further on,
modulo that width, so one line of arithmetic serves both halves.
"""

import torch
import triton
import triton.language as tl

TILE = 4096  # elements a program: 32 a thread, four loads of 16 bytes of x and as many of partners


@triton.jit
def _rope_kernel(
    x_ptr, x_seq, x_batch, x_head, x_dim,
    out_ptr, out_seq, out_batch, out_head, out_dim,
    freqs_ptr, freqs_seq, freqs_dim, seq, heads,
    DIM: tl.constexpr, ROTATED: tl.constexpr, BACKWARD: tl.constexpr,
    BLOCK_SEQ: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Rotate one tile [BLOCK_SEQ, BLOCK_HEADS, BLOCK_DIM] of one batch by its angles f.

    With p(i) = (i + ROTATED / 2) mod ROTATED and s(i) = -1 in the first half, +1 in the second:

        forward   out[i] = x[i] cos(f[i]) + s(i) x[p(i)] sin(f[i])
        backward   dx[i] = g[i] cos(f[i]) - s(i) g[p(i)] sin(f[p(i)])

    Bytes: 2 * numel * itemsize + s * d2 * 4. Each x[i] is loaded twice, as itself and as a partner,
    but by the same program, so the cache answers the second load. All offsets are in elements.
    """
    seq_tiles, head_tiles = tl.cdiv(seq, BLOCK_SEQ), tl.cdiv(heads, BLOCK_HEADS)
    tile = tl.program_id(0)
    batch = (tile // head_tiles // seq_tiles).to(tl.int64)
    first_pos = tile // head_tiles % seq_tiles * BLOCK_SEQ
    first_head = tile % head_tiles * BLOCK_HEADS
    pos = (first_pos + tl.arange(0, BLOCK_SEQ)).to(tl.int64)[:, None, None]
    head = (first_head + tl.arange(0, BLOCK_HEADS)).to(tl.int64)[None, :, None]
    i = tl.arange(0, BLOCK_DIM)[None, None, :]
    partner = (i + ROTATED // 2) % ROTATED
    inside = (pos < seq) & (head < heads)
    rotated = i < ROTATED

    x_row = x_ptr + batch * x_batch + pos * x_seq + head * x_head
    x = tl.load(x_row + i.to(tl.int64) * x_dim, mask=inside & (i < DIM), other=0)
    x_partner = tl.load(x_row + partner.to(tl.int64) * x_dim, mask=inside & rotated, other=0)
    # Features past ROTATED get the angle 0, so cos 1 and sin 0: they pass through unchanged.
    angles = freqs_ptr + pos * freqs_seq
    f = tl.load(angles + i * freqs_dim, mask=(pos < seq) & rotated, other=0)
    f_sin = f
    if BACKWARD:
        f_sin = tl.load(angles + partner * freqs_dim, mask=(pos < seq) & rotated, other=0)

    sign = tl.where((i < ROTATED // 2) != BACKWARD, -1.0, 1.0)
    out = x.to(tl.float32) * tl.cos(f) + x_partner.to(tl.float32) * (sign * tl.sin(f_sin))
    out_row = out_ptr + batch * out_batch + pos * out_seq + head * out_head
    tl.store(out_row + i * out_dim, out, mask=inside & (i < DIM))


def _launch(
    x: torch.Tensor, freqs: torch.Tensor, tensor_format: str, backward: bool
) -> torch.Tensor:
    """Rotate x (forward) or a gradient (backward) into a new contiguous tensor."""
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if result.numel() == 0:
        return result
    out = result
    if tensor_format == "bshd":  # to the kernel, the format is a matter of strides
        x, out = x.transpose(0, 1), out.transpose(0, 1)
    seq, batch, heads, dim = x.shape
    # Fill a tile with heads before positions: the heads of a position share one cos and sin.
    block_dim = triton.next_power_of_2(dim)
    block_heads = min(triton.next_power_of_2(heads), max(1, TILE // block_dim))
    block_seq = min(triton.next_power_of_2(seq), max(1, TILE // (block_dim * block_heads)))
    _rope_kernel[(batch * triton.cdiv(seq, block_seq) * triton.cdiv(heads, block_heads),)](
        x, *x.stride(), out, *out.stride(), freqs, freqs.stride(0), freqs.stride(-1), seq, heads,
        DIM=dim, ROTATED=freqs.shape[-1], BACKWARD=backward,
        BLOCK_SEQ=block_seq, BLOCK_HEADS=block_heads, BLOCK_DIM=block_dim,
    )  # fmt: skip
    return result


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, tensor_format):
        ctx.save_for_backward(freqs)
        ctx.tensor_format = tensor_format
        return _launch(t, freqs, tensor_format, backward=False)

    @staticmethod
    def backward(ctx, grad):
        if grad.requires_grad and torch.is_grad_enabled():  # create_graph=True
            raise NotImplementedError("rope has no second derivative")
        (freqs,) = ctx.saved_tensors
        return _launch(grad, freqs, ctx.tensor_format, backward=True), None, None


def rope(t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd") -> torch.Tensor:
    """Rotate the first d2 features of t by freqs float32 [s2, 1, 1, d2], s2 >= s and d2 <= d.

    t is [s, b, h, d] (sbhd) or [b, s, h, d] (bshd). Returns a new contiguous tensor of t's shape
    and dtype; freqs takes no gradient.
    """
    if tensor_format not in ("sbhd", "bshd"):
        raise NotImplementedError(f"tensor_format {tensor_format!r}")
    return _Rope.apply(t, freqs, tensor_format)
