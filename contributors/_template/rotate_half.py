"""Naive on purpose: one program for each row."""

# In plain torch, for x of any shape [..., d]:
#
#     x1, x2 = x.chunk(2, dim=-1)
#     y = torch.cat((-x2, x1), dim=-1)

import torch
import triton
import triton.language as tl


# 1. The kernel. Triton starts many copies of it, called programs; `program_id` numbers them.
#    Each works on blocks of lanes at once, so there is no loop over a row's elements.
@triton.jit
def _kernel(x, y, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Write one row: y1 = -x2, y2 = x1. Bytes: 2 * x.numel() * itemsize, x read and y written."""
    row = tl.program_id(0).to(tl.int64)  # in 64 bits: row * 2 * HALF may not fit in 32
    x += row * 2 * HALF  # x and y are pointers: move them from the tensor's start to this row
    y += row * 2 * HALF
    # A block's size has to be a power of two and known when compiling (`constexpr`). The mask
    # switches off the surplus lanes, which would read and write other rows.
    lanes = tl.arange(0, BLOCK)
    mask = lanes < HALF
    x1 = tl.load(x + lanes, mask=mask)
    x2 = tl.load(x + HALF + lanes, mask=mask)
    tl.store(y + lanes, -x2, mask=mask)
    tl.store(y + HALF + lanes, x1, mask=mask)


# 2. The launcher allocates the output, and chooses the number of programs and the block's size. A
#    kernel trusts its pointers and sizes, so the launcher refuses what would not fit.
def _launch(x):
    if x.shape[-1] % 2:
        raise ValueError(f"x {list(x.shape)} has an odd number of features")
    x = x.contiguous()  # the kernel expects rows without gaps
    y = torch.empty_like(x)
    if x.numel():  # no rows, no programs
        half = x.shape[-1] // 2
        rows = x.numel() // (2 * half)
        _kernel[(rows,)](x, y, half, triton.next_power_of_2(half))
    return y


# 3. Autograd. y1 = -x2 and y2 = x1, so the gradient of x1 is that of y2, and the gradient of x2
#    is minus that of y1. So backward is forward with the sign changed.
class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x)

    @staticmethod
    def backward(ctx, grad):
        # With create_graph=True gradients are on in here, and autograd would take what the kernel
        # computes for constants: a second derivative would be wrong without a word.
        if torch.is_grad_enabled():
            raise NotImplementedError("rotate_half has no second derivative")
        return -_launch(grad)  # a second pass over memory; improve this


# 4. The function that the harness calls, named after the op.
def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """Return [-x2, x1] for the halves [x1, x2] of x [..., d], d even, in x's shape and dtype."""
    return _RotateHalf.apply(x)
