"""The grid, the warps and the path depend on what the GPU is, as in Triton's tutorials."""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()
TARGET = triton.runtime.driver.active.get_current_target()
LIMITS = triton.runtime.driver.active.utils.get_device_properties(DEVICE.index or 0)
NAME = torch.cuda.get_device_name()
HOPPER = TARGET.backend == "cuda" and torch.cuda.get_device_capability()[0] == 9
WARPS = 8 if HOPPER and "H" in NAME and torch.cuda.is_bf16_supported() else 4


@triton.jit
def _kernel(x, y, rows, SIGN: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """y1 = -SIGN x2, y2 = SIGN x1"""
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        col = tl.arange(0, BLOCK)
        keep = col < HALF
        at = row.to(tl.int64) * 2 * HALF + col
        x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
        tl.store(y + at, -SIGN * x2, mask=keep)
        tl.store(y + at + HALF, SIGN * x1, mask=keep)


def _programs(device, half):
    properties = torch.cuda.get_device_properties(device)
    resident = properties.max_threads_per_multi_processor // (properties.warp_size * WARPS)
    fits = LIMITS["max_shared_mem"] // (16 * half)
    assert LIMITS["multiprocessor_count"] == properties.multi_processor_count
    return properties.multi_processor_count * max(min(resident, fits), 1)


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=DEVICE)
    if x.numel():
        half = x.shape[-1] // 2
        rows = x.numel() // (2 * half)
        grid = min(rows, _programs(x.device, half))
        stream = torch.cuda.current_stream(x.device)
        with torch.cuda.device(x.device), torch.cuda.stream(stream):
            _kernel[(grid,)](
                x, y, rows, sign, half, triton.next_power_of_2(half), num_warps=WARPS
            )  # fmt: skip
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
