"""triton.autotune prunes the configurations whose block does not hold a half."""

import torch
import triton
import triton.language as tl

BLOCKS = [triton.Config({"BLOCK": block}, num_warps=2) for block in (4, 16, 64, 128)]


def _fitting(configs, named, HALF, **options):
    return [config for config in configs if config.kwargs["BLOCK"] >= HALF]


@triton.autotune(BLOCKS, key=["HALF"], prune_configs_by={"early_config_prune": _fitting})
@triton.jit
def _kernel(x, y, SIGN: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """y1 = -SIGN x2, y2 = SIGN x1, for one row"""
    col = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * 2 * HALF + col
    x1, x2 = tl.load(x + at, mask=col < HALF), tl.load(x + at + HALF, mask=col < HALF)
    tl.store(y + at, -SIGN * x2, mask=col < HALF)
    tl.store(y + at + HALF, SIGN * x1, mask=col < HALF)


def _turn(x, sign):
    half = x.shape[-1] // 2
    if half > 128:
        raise NotImplementedError("rows longer than 256")
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        _kernel[(x.numel() // (2 * half),)](x, y, SIGN=sign, HALF=half)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
