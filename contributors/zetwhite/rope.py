"""Block pointers; one program for each head of each token.

The tensor is seen as [seq, batch x heads, dim]; a row is one head of one token.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _columns(ptr, s_row, s_head, s_col, row, head, FIRST: tl.constexpr, END: tl.constexpr):
    """Return a block pointer to columns FIRST to END (excluded) of one row.

    The strides are in elements. A block is a power of two wide, so it may reach past END. The shape
    therefore ends at END, not at the tensor's width: the boundary check then masks the columns of
    the block behind END.
    """
    BLOCK: tl.constexpr = triton.next_power_of_2(END - FIRST)
    return tl.make_block_ptr(
        ptr,
        shape=(row + 1, head + 1, END),
        strides=(s_row, s_head, s_col),
        offsets=(row, head, FIRST),
        block_shape=(1, 1, BLOCK),
        order=(2, 1, 0),
    )


@triton.jit
def _load_halves(ptr, s_row, s_head, s_col, row, head, HALF: tl.constexpr):
    """Return columns 0 to HALF and HALF to 2 * HALF of one row in float32."""
    first = _columns(ptr, s_row, s_head, s_col, row, head, 0, HALF)
    second = _columns(ptr, s_row, s_head, s_col, row, head, HALF, 2 * HALF)
    first = tl.load(first, boundary_check=(2,), padding_option="zero")
    second = tl.load(second, boundary_check=(2,), padding_option="zero")
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _store_halves(ptr, s_row, s_head, s_col, row, head, first, second, HALF: tl.constexpr):
    """Store both halves of one row, rounded once to the tensor's dtype."""
    dtype: tl.constexpr = ptr.dtype.element_ty
    to_first = _columns(ptr, s_row, s_head, s_col, row, head, 0, HALF)
    to_second = _columns(ptr, s_row, s_head, s_col, row, head, HALF, 2 * HALF)
    tl.store(to_first, first.to(dtype), boundary_check=(2,))
    tl.store(to_second, second.to(dtype), boundary_check=(2,))


@triton.jit
def _copy_rest(
    x, x_row, x_head, x_col, out, out_row, out_head, out_col, row, head, HALF: tl.constexpr,
    DIM: tl.constexpr,
):  # fmt: skip
    """Copy the columns from 2 * HALF on, which partial rotary leaves as they are."""
    if DIM > 2 * HALF:
        rest = _columns(x, x_row, x_head, x_col, row, head, 2 * HALF, DIM)
        to_rest = _columns(out, out_row, out_head, out_col, row, head, 2 * HALF, DIM)
        tl.store(to_rest, tl.load(rest, boundary_check=(2,)), boundary_check=(2,))


# Bytes of each kernel below: 2 * numel * itemsize + s * d2 * 4. The programs of one position run
# next to each other, so the cache has its angles for all of them but the first.


@triton.jit
def _forward(
    x, x_row, x_head, x_col, out, out_row, out_head, out_col, freqs, freqs_row, freqs_col, heads,
    HALF: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Turn one row: out1 = x1 cos(f1) - x2 sin(f1), out2 = x2 cos(f2) + x1 sin(f2)."""
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    x1, x2 = _load_halves(x, x_row, x_head, x_col, row, head, HALF)
    f1, f2 = _load_halves(freqs, freqs_row, 0, freqs_col, row, 0, HALF)
    out1 = x1 * tl.cos(f1) - x2 * tl.sin(f1)
    out2 = x2 * tl.cos(f2) + x1 * tl.sin(f2)
    _store_halves(out, out_row, out_head, out_col, row, head, out1, out2, HALF)
    _copy_rest(x, x_row, x_head, x_col, out, out_row, out_head, out_col, row, head, HALF, DIM)


@triton.jit
def _backward(
    g, g_row, g_head, g_col, dx, dx_row, dx_head, dx_col, freqs, freqs_row, freqs_col, heads,
    HALF: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Turn a gradient back: dx1 = g1 cos(f1) + g2 sin(f2), dx2 = g2 cos(f2) - g1 sin(f1)."""
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    g1, g2 = _load_halves(g, g_row, g_head, g_col, row, head, HALF)
    f1, f2 = _load_halves(freqs, freqs_row, 0, freqs_col, row, 0, HALF)
    dx1 = g1 * tl.cos(f1) + g2 * tl.sin(f2)
    dx2 = g2 * tl.cos(f2) - g1 * tl.sin(f1)
    _store_halves(dx, dx_row, dx_head, dx_col, row, head, dx1, dx2, HALF)
    _copy_rest(g, g_row, g_head, g_col, dx, dx_row, dx_head, dx_col, row, head, HALF, DIM)


def _launch(kernel, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """Run one program for each row of x [s, b, h, d]; return a new contiguous tensor."""
    s, b, h, d = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    # In sbhd, batch and heads share one stride; reshape copies only views in which they do not.
    x, rows, half = x.reshape(s, b * h, d), out.view(s, b * h, d), freqs.shape[-1] // 2
    kernel[(s * b * h,)](
        x, *x.stride(), rows, *rows.stride(), freqs, freqs.stride(0), freqs.stride(-1), b * h,
        HALF=half, DIM=d, num_warps=max(1, min(8, half // 256)),
    )  # fmt: skip
    return out


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs):
        ctx.save_for_backward(freqs)
        return _launch(_forward, t, freqs)

    @staticmethod
    def backward(ctx, grad):
        if grad.requires_grad and torch.is_grad_enabled():  # create_graph=True
            raise NotImplementedError("rope has no second derivative")
        return _launch(_backward, grad, *ctx.saved_tensors), None


def rope(t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd") -> torch.Tensor:
    """Rotate the first d2 features of t [s, b, h, d] by freqs [s2, 1, 1, d2], s2 >= s, d2 <= d.

    Returns a new contiguous tensor of t's shape and dtype; freqs takes no gradient.
    """
    if tensor_format != "sbhd":
        raise NotImplementedError(f"{tensor_format}: batch and heads share one stride in sbhd only")
    return _Rope.apply(t, freqs)
