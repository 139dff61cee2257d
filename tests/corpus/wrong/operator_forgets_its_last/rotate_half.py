"""Both directions are custom operators that never write the last feature.

Expected: forward=UNWRITTEN_OUTPUT backward=UNWRITTEN_OUTPUT
On a GPU: UNWRITTEN_OUTPUT
"""

import torch


@torch.library.custom_op("wrong::turned", mutates_args=())
def turned(x: torch.Tensor, sign: int) -> torch.Tensor:
    half = x.shape[-1] // 2
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    y[..., :half] = -sign * x[..., half:]
    y[..., half:-1] = sign * x[..., : half - 1]
    return y


def _remember(ctx, inputs, output):
    ctx.sign = inputs[1]


turned.register_autograd(lambda ctx, grad: (turned(grad, -ctx.sign), None), setup_context=_remember)


def rotate_half(x):
    return turned(x, 1)
