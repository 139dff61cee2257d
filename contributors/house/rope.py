"""RoPE: a program turns about 4 KiB of heads, of a token or of several, in memory's order."""

import grouped  # early, wait: on Hopper, a launch begins while the kernel before it runs
import torch
import triton
import triton.language as tl
from fast.trigonometry import cos_sin, for_each_head  # cos_sin: a fifth of tl.cos's instructions


@triton.jit
def _find_sequence(cu_seqlens, token, sequences):
    """Return each token's sequence, the last with start <= token, by looks at 128 starts each."""
    found, step = tl.zeros_like(token), 1
    while step * 128 < sequences:
        step *= 128
    while step > 0:
        entry = found[:, None] + step * tl.arange(0, 128)[None, :]  # next, between two of them
        start = tl.load(cu_seqlens + entry, mask=entry < sequences, other=2**31 - 1)
        found += step * (tl.sum((start <= token[:, None]).to(tl.int32), 1) - 1)
        step //= 128
    return found


@triton.jit
def _rope_kernel(
    t,  # [rows, columns, heads, WIDTH], features next to each other
    freqs,  # [positions, ROTARY] float32, contiguous: an angle for each feature that turns
    out,  # t's shape, contiguous
    start_positions,  # [sequences] int or None: every sequence begins at position 0
    cu_seqlens,  # [sequences + 1] int, where each begins; None: not packed, see SEQ_FIRST
    sizes,  # rows, columns, heads (`_Rope` may merge a batch's), sequences (packed, or 0)
    strides,  # of t, in elements: from a row, a column, a head and a feature (1) to the next
    WIDTH: tl.constexpr,  # features of a head
    ROTARY: tl.constexpr,  # of these turn
    SEQ_FIRST: tl.constexpr,  # a column of t is a sequence (sbhd), otherwise a row is (bshd)
    INTERLEAVED: tl.constexpr,  # features 2i and 2i + 1 are a pair, otherwise i and i + ROTARY / 2
    BACKWARD: tl.constexpr,  # t is the gradient of forward's result, out that of its t
    BLOCK_T: tl.constexpr,  # tokens of a program, a power of two
    BLOCK_H: tl.constexpr,  # heads of a program, of each of its tokens
):
    """Turn each pair of features (x1, x2) by its angles (f1, f2), which need not be the same.

        forward    y1 = x1 cos f1 - x2 sin f1    y2 = x2 cos f2 + x1 sin f2
        backward   y1 = x1 cos f1 + x2 sin f2    y2 = x2 cos f2 - x1 sin f1

    Bytes: 2 * t.numel() * itemsize, and 4 * ROTARY for each position, if L2 keeps its angles.
    """
    rows, columns, heads, sequences = sizes
    BLOCK: tl.constexpr = triton.next_power_of_2(WIDTH)
    feature = tl.arange(0, BLOCK)[None, :]
    DISTANCE: tl.constexpr = 1 if INTERLEAVED else ROTARY // 2  # from a feature to its partner
    first = feature // DISTANCE % 2 == 0
    partner = tl.where(first, feature + DISTANCE, feature - DISTANCE)
    # The blocks of a token's heads are neighbours: memory is read and written from front to back.
    blocks = tl.cdiv(heads, BLOCK_H)
    first_token = tl.program_id(0) // blocks * BLOCK_T
    line = tl.arange(0, BLOCK_T * BLOCK_H)[:, None]  # each is a head of a token
    token_of_line = first_token + line // BLOCK_H
    head = (tl.program_id(0) % blocks * BLOCK_H + line % BLOCK_H).to(tl.int64)
    inside = (token_of_line < rows * columns) & (head < heads)
    t += (token_of_line // columns).to(tl.int64) * strides[0] + head * strides[2]
    t += (token_of_line % columns).to(tl.int64) * strides[1]
    out += (token_of_line.to(tl.int64) * heads + head) * WIDTH
    grouped.wait()  # for the last kernel, which may have written t; addresses need nothing of it
    # Load t first, x and its partners z: on the way while positions and angles are computed.
    x = tl.load(t + feature, mask=inside & (feature < WIDTH))
    if INTERLEAVED:  # exchanged in registers; a load would not be vectorized
        x1, x2 = tl.split(tl.reshape(x, [BLOCK_T * BLOCK_H, BLOCK // 2, 2]))
        z = tl.reshape(tl.join(x2, x1), x.shape)
    else:  # from the cache: x loads the same memory
        z = tl.load(t + partner, mask=inside & (feature < ROTARY), other=0)
    token = first_token + tl.arange(0, BLOCK_T)  # again, without heads: angles are [BLOCK_T, BLOCK]
    exists = token < rows * columns
    row, column = token // columns, token % columns
    position, sequence = (row, column) if SEQ_FIRST else (column, row)
    if cu_seqlens is not None:
        sequence = _find_sequence(cu_seqlens, token, sequences)
        position = token - tl.load(cu_seqlens + sequence, mask=exists)
    if start_positions is not None:
        position += tl.load(start_positions + sequence, mask=exists, other=0)
    turns = exists[:, None] & (feature < ROTARY)
    freqs += position.to(tl.int64)[:, None] * ROTARY
    angle = tl.load(freqs + feature, mask=turns, other=0)
    of_sin = -tl.load(freqs + partner, mask=turns, other=0) if BACKWARD else angle
    cos, sin = cos_sin(angle, of_sin)
    sin = tl.where(first, -sin, sin)  # backward: of the partner's angle, with the other sign
    # One thread computes each angle, if threads <= BLOCK_T * BLOCK; now copy it to all heads.
    cos, sin = for_each_head(cos, sin, BLOCK_H)
    y = (x.to(tl.float32) * cos + z.to(tl.float32) * sin).to(x.dtype)
    tl.store(out + feature, tl.where(feature < ROTARY, y, x), mask=inside & (feature < WIDTH))


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, start_positions, cu_seqlens, seq_first, interleaved, backward):
        ctx.save_for_backward(freqs, start_positions, cu_seqlens)
        ctx.options = seq_first, interleaved, backward
        t = t if t.stride(-1) == 1 else t.contiguous()
        (rows, columns, heads, width), strides = t.shape, t.stride()
        if seq_first and start_positions is None and strides[1] == heads * strides[2]:
            heads, columns = heads * columns, 1  # a row has one position: take it for one token
        sequences = cu_seqlens.numel() - 1 if cu_seqlens is not None else 0
        # About 4 KiB, at most 128 lines: 8 KiB keep fewer loads in flight, 2 KiB repeat angles. Of
        # these a thread has 32 bytes and one angle at least.
        lines = triton.next_power_of_2(min(max(4096 // (width * t.element_size()), 1), 128))
        block_h = min(triton.next_power_of_2(max(heads, 1)), lines)
        block_t = lines // block_h if 2 * block_h < lines else 1  # one, if it fills half
        threads = block_t * min(width, block_h * width * t.element_size() // 32)  # <= angles
        out = torch.empty_like(t, memory_format=torch.contiguous_format)
        if t.numel():
            _rope_kernel[(triton.cdiv(rows * columns, block_t) * triton.cdiv(heads, block_h),)](
                t, freqs, out, start_positions, cu_seqlens, (rows, columns, heads, sequences),
                strides, width, freqs.shape[-1], *ctx.options, block_t, block_h,
                num_warps=triton.next_power_of_2(min(max(threads // 32, 1), 4)), **grouped.early(t),
            )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx, grad):  # turning is linear: by `apply`, a second derivative is right
        *options, backward = ctx.options
        return _Rope.apply(grad, *ctx.saved_tensors, *options, not backward), *[None] * 6


def rope(
    t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None, cu_seqlens=None
):
    """Turn the first d2 features of every head by the angles of its token's position.

    t: [s, b, h, d] (sbhd), [b, s, h, d] (bshd) or [tokens, h, d] (thd, with cu_seqlens [b + 1]);
    freqs: [s2, 1, 1, d2] float32, no gradient; start_positions: [b]. Returns t's shape and dtype.
    What does not fit is a ValueError. Values on the GPU are not looked at: past s2 is past freqs.
    """
    packed = tensor_format == "thd"
    if tensor_format not in ("sbhd", "bshd", "thd") or packed != (cu_seqlens is not None):
        raise ValueError(f"rope: {tensor_format!r} is no thd with cu_seqlens, sbhd or bshd without")
    if t.dim() != 4 - packed or t.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"rope: t {list(t.shape)} of {t.dtype} is no {tensor_format}")
    table = t.unsqueeze(1) if packed else t  # packed tokens are one column
    length = 0 if packed else t.shape[tensor_format.index("s")]  # of packed ones, the GPU knows it
    batch = cu_seqlens.numel() - 1 if packed else t.shape[tensor_format.index("b")]
    s2, *ones, d2 = freqs.shape
    fits = ones == [1, 1] and s2 >= length and d2 % 2 == 0 and 0 < d2 <= t.shape[-1]
    if not fits or freqs.dtype != torch.float32 or freqs.requires_grad:
        raise ValueError(f"rope: t {list(t.shape)}, but freqs {list(freqs.shape)} of {freqs.dtype}")
    starts_fit = start_positions is None or start_positions.shape == (batch,)
    dtypes = {x.dtype for x in (start_positions, cu_seqlens) if x is not None}
    if (packed and batch < min(len(t), 1)) or not starts_fit or dtypes - {torch.int32, torch.int64}:
        raise ValueError(f"rope: start_positions, cu_seqlens of {dtypes} do not fit b = {batch}")
    tensors = [x if x is None else x.contiguous() for x in (freqs, start_positions, cu_seqlens)]
    return _Rope.apply(table, *tensors, tensor_format != "bshd", interleaved, False).view(t.shape)
