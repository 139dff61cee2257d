"""A library's operator allocates and launches a kernel; a schema stands for its signature.

Expected: forward=PASSED backward=PASSED
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, n, d, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    first = offs % d < d // 2
    partner = tl.where(first, offs + d // 2, offs - d // 2)
    value = tl.load(x + partner, mask)
    tl.store(y + offs, tl.where(first != BACKWARD, -value, value), mask)


def _turned(x, backward):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.numel()
    if n:
        _kernel[(triton.cdiv(n, 256),)](x, y, n, x.shape[-1], backward, 256)
    return y


library = torch.library.Library("honest_library", "DEF")
library.define("turned(Tensor x, bool backward) -> Tensor")
library.impl("turned", _turned, "CompositeExplicitAutograd")
library.define("rotate_half(Tensor x) -> Tensor")
library.impl("rotate_half", lambda x: torch.ops.honest_library.turned(x, False), "CPU")
library.impl("rotate_half", lambda x: torch.ops.honest_library.turned(x, False), "CUDA")
torch.library.register_autograd(
    "honest_library::rotate_half",
    lambda ctx, grad: torch.ops.honest_library.turned(grad, True),
    lib=library,
)
rotate_half = torch.ops.honest_library.rotate_half
