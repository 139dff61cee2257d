"""Three threads of a pool launch the same kernel at once, each on rows of its own."""

from concurrent.futures import ThreadPoolExecutor

import torch
import triton
import triton.language as tl

POOL = ThreadPoolExecutor(3)


@triton.jit
def _kernel(x, y, rows, SIGN: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """y1 = -SIGN x2, y2 = SIGN x1"""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    keep = (row < rows) & (col < HALF)
    at = row * 2 * HALF + col
    x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
    tl.store(y + at, -SIGN * x2, mask=keep)
    tl.store(y + at + HALF, SIGN * x1, mask=keep)


def _launch(x, y, sign, stream):
    half = x.shape[-1] // 2
    with torch.cuda.stream(stream):  # the caller's: a stream belongs to a thread
        _kernel[(triton.cdiv(len(x), 8),)](
            x, y, len(x), sign, half, 8, triton.next_power_of_2(half)
        )


def _turn(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        stream = torch.cuda.current_stream(x.device) if x.is_cuda else None
        rows = x.view(-1, x.shape[-1]), y.view(-1, x.shape[-1])
        size = triton.cdiv(len(rows[0]), 3)
        pairs = zip(*(part.split(size) for part in rows), strict=True)
        for job in [POOL.submit(_launch, *pair, sign, stream) for pair in pairs]:
            job.result()
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
