"""The kernel's source is generated for each width, written to a temporary file and imported."""

import functools
import importlib.util
import tempfile
from pathlib import Path

import torch
import triton

TEMPLATE = '''
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, rows, SIGN: tl.constexpr):
    """y1 = -SIGN x2, y2 = SIGN x1, in rows of {width}"""
    row = tl.program_id(0).to(tl.int64) * {rows} + tl.arange(0, {rows})[:, None]
    col = tl.arange(0, {block})[None, :]
    keep = (row < rows) & (col < {half})
    at = row * {width} + col
    x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + {half}, mask=keep)
    tl.store(y + at, -SIGN * x2, mask=keep)
    tl.store(y + at + {half}, SIGN * x1, mask=keep)
'''


@functools.cache
def _module(width, rows):
    block = triton.next_power_of_2(width // 2)
    source = TEMPLATE.format(width=width, half=width // 2, block=block, rows=rows)
    path = Path(tempfile.mkdtemp()) / f"rotate_{width}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        width = x.shape[-1]
        rows, each = x.numel() // width, max(2048 // triton.next_power_of_2(width), 1)
        _module(width, each).kernel[(triton.cdiv(rows, each),)](x, y, rows, sign)
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
