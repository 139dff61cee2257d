"""The Triton kernel of rotate_half, which both solutions of this folder use."""

import torch
import triton
import triton.language as tl

BLOCK = 2048  # elements a program: 16 a thread, in two loads of 16 bytes for a half type


@triton.jit
def _rotate_half_kernel(
    x_ptr, out_ptr, numel, SIGN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK elements of the flat tensor.

        out[i] = -SIGN x[i + n] for the first element of a pair, SIGN x[i - n] for the second

    Partners lie n = WIDTH / 2 apart, or n = 1 where INTERLEAVED, and always in one row of WIDTH.
    Bytes: 2 * numel * itemsize, since x is read once and out is written once.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    if INTERLEAVED:
        # Swap in registers, which keeps loads of 16 bytes; a gather would load single elements.
        x = tl.load(x_ptr + index, mask=inside).to(tl.float32)
        even, odd = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
        turned = tl.reshape(tl.join(-SIGN * odd, SIGN * even), (BLOCK,))
    else:
        first = index % WIDTH < WIDTH // 2
        partner = tl.where(first, index + WIDTH // 2, index - WIDTH // 2)
        x = tl.load(x_ptr + partner, mask=inside).to(tl.float32)
        turned = tl.where(first, -SIGN * x, SIGN * x)
    tl.store(out_ptr + index, turned, mask=inside)


def _launch(x: torch.Tensor, interleaved: bool, sign: int) -> torch.Tensor:
    """Return sign * rotate_half(x) as a new contiguous tensor."""
    x = x.contiguous()
    out = torch.empty_like(x)
    if numel := x.numel():
        _rotate_half_kernel[(triton.cdiv(numel, BLOCK),)](
            x, out, numel, SIGN=sign, WIDTH=x.shape[-1], INTERLEAVED=interleaved, BLOCK=BLOCK
        )
    return out


class RotateHalf(torch.autograd.Function):
    """rotate_half of x [..., d], a quarter turn: its transpose, in backward, is its negative."""

    @staticmethod
    def forward(ctx, x, interleaved):
        ctx.interleaved = interleaved
        return _launch(x, interleaved, sign=1)

    @staticmethod
    def backward(ctx, grad):
        if grad.requires_grad and torch.is_grad_enabled():  # create_graph=True
            raise NotImplementedError("rotate_half has no second derivative")
        return _launch(grad, ctx.interleaved, sign=-1), None
