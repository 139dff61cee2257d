"""The kernel of a library's operator rounds its grid down: elements beyond 64 stay unwritten.

Expected: forward=UNWRITTEN_OUTPUT backward=UNWRITTEN_OUTPUT
On a GPU: UNWRITTEN_OUTPUT
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, d, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = offs % d < d // 2
    value = tl.load(x + tl.where(first, offs + d // 2, offs - d // 2))
    tl.store(y + offs, tl.where(first != BACKWARD, -value, value))


def _turned(x, backward):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() >= 64:
        _kernel[(x.numel() // 64,)](x, y, x.shape[-1], backward, 64)
    return y


library = torch.library.Library("wrong_library", "DEF")
library.define("turned(Tensor x, bool backward) -> Tensor")
library.impl("turned", _turned, "CompositeExplicitAutograd")
turned = torch.ops.wrong_library.turned


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return turned(x, False)

    @staticmethod
    def backward(ctx, grad):
        return turned(grad, True)


def rotate_half(x):
    return _RotateHalf.apply(x)
