"""Naive on purpose: one program for each head of each token."""

# In plain torch, for t [s, b, h, d] and freqs [s2, 1, 1, d2]:
#
#     angle = freqs[:s]                              # token i of a sequence has position i
#     x, rest = t[..., :d2], t[..., d2:]             # the last d - d2 features stay as they are
#     x1, x2 = x.chunk(2, dim=-1)
#     out = torch.cat((x * angle.cos() + torch.cat((-x2, x1), -1) * angle.sin(), rest), -1)
#
# Written out for the two halves, with cos1 and sin1 of the angles' first half and cos2 and sin2 of
# their second half (the halves may differ):
#
#     y1 = x1 * cos1 - x2 * sin1
#     y2 = x2 * cos2 + x1 * sin2

import torch
import triton
import triton.language as tl


# 1. The kernel. Triton starts many copies of it, called programs; `program_id` numbers them.
#    Here a program computes one row: the d features of one head of one token.
@triton.jit
def _kernel(
    t, freqs, out, rows_per_position, s,
    D: tl.constexpr, D2: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    BACKWARD: tl.constexpr,
):  # fmt: skip
    """Turn one row: y1 = x1 * cos1 - x2 * sin1, y2 = x2 * cos2 + x1 * sin2, and copy the rest.

    Bytes: 2 * t.numel() * itemsize, since t is read once and out is written once. In addition,
    every head of a token reads the angles and computes their cosines and sines anew; improve this.
    """
    row = tl.program_id(0)
    position = row // rows_per_position % s
    # t, freqs and out are pointers to a tensor's first element. Move them to this row; in 64 bits,
    # because row * D may not fit in 32.
    t += row.to(tl.int64) * D
    out += row.to(tl.int64) * D
    freqs += position.to(tl.int64) * D2

    # A block's size has to be a power of two and known when compiling (`constexpr`), so BLOCK is
    # D2 / 2 rounded up. The mask switches off the surplus lanes, which would leave the row.
    HALF: tl.constexpr = D2 // 2
    lanes = tl.arange(0, BLOCK)
    mask = lanes < HALF
    # Arithmetic in float32 for every dtype: the only rounding is the store's.
    x1 = tl.load(t + lanes, mask=mask).to(tl.float32)
    x2 = tl.load(t + HALF + lanes, mask=mask).to(tl.float32)
    angle1 = tl.load(freqs + lanes, mask=mask).to(tl.float32)
    angle2 = tl.load(freqs + HALF + lanes, mask=mask).to(tl.float32)
    cos1, sin1 = tl.cos(angle1), tl.sin(angle1)
    cos2, sin2 = tl.cos(angle2), tl.sin(angle2)

    # Backward gets the gradients g1 and g2 of y1 and y2 in place of x1 and x2. The gradient of x1
    # sums over both places where x1 is used: g1 * cos1 + g2 * sin2. The gradient of x2 is
    # g2 * cos2 - g1 * sin1. That is forward with each sine exchanged for minus its partner's.
    if BACKWARD:
        sin1, sin2 = -sin2, -sin1
    tl.store(out + lanes, x1 * cos1 - x2 * sin1, mask=mask)
    tl.store(out + HALF + lanes, x2 * cos2 + x1 * sin2, mask=mask)

    # Copy the features behind the rotated ones. D and D2 are known when compiling, so this code
    # exists only where there are such features.
    if D > D2:
        lanes = D2 + tl.arange(0, REST)
        rest = tl.load(t + lanes, mask=lanes < D)
        tl.store(out + lanes, rest, mask=lanes < D)


# 2. The launcher allocates the output, and chooses the number of programs and the block's size. A
#    kernel trusts its pointers and sizes: where freqs had fewer rows than t has positions, it would
#    read other memory. So the launcher refuses what does not fit.
def _launch(t, freqs, tensor_format, backward):
    t, freqs = t.contiguous(), freqs.contiguous()  # the kernel expects rows without gaps
    out = torch.empty_like(t)
    d, d2 = t.shape[-1], freqs.shape[-1]
    if tensor_format == "sbhd":  # the next position comes after all heads of all sequences
        s, b, h, _ = t.shape
        rows_per_position = b * h
    else:  # bshd: after all heads, and the positions begin again with the next sequence
        _, s, h, _ = t.shape
        rows_per_position = h
    if freqs.shape[0] < s or d2 > d or d2 % 2:
        raise ValueError(f"freqs {list(freqs.shape)} do not fit t {list(t.shape)}")
    if not t.numel():  # no rows, no programs
        return out
    block, rest = triton.next_power_of_2(max(d2 // 2, 1)), triton.next_power_of_2(d - d2)
    rows = t.numel() // d
    _kernel[(rows,)](t, freqs, out, rows_per_position, s, d, d2, block, rest, backward)
    return out


# 3. Autograd: forward saves the tensors that backward needs on `ctx`. Backward returns a gradient
#    or None for each argument of forward.
class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, tensor_format):
        ctx.save_for_backward(freqs)
        ctx.tensor_format = tensor_format
        return _launch(t, freqs, tensor_format, backward=False)

    @staticmethod
    def backward(ctx, grad):
        # With create_graph=True gradients are on in here, and autograd would take what the kernel
        # computes for constants: a second derivative would be wrong without a word.
        if torch.is_grad_enabled():
            raise NotImplementedError("rope has no second derivative")
        (freqs,) = ctx.saved_tensors
        return _launch(grad, freqs, ctx.tensor_format, backward=True), None, None


# 4. The function that the harness calls, named after the op. An option that it does not name is
#    unsupported, which is no failure: add it later.
def rope(t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd") -> torch.Tensor:
    """Return t with its first d2 features turned by the angles, in t's shape and dtype.

    t: [s, b, h, d] (sbhd) or [b, s, h, d] (bshd); freqs: [s2, 1, 1, d2], s2 >= s, d2 <= d.
    """
    if tensor_format not in ("sbhd", "bshd"):
        raise NotImplementedError(f"tensor_format {tensor_format}")
    return _Rope.apply(t, freqs, tensor_format)
