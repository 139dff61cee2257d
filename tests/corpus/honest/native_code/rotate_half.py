"""C code, compiled when first called and loaded by ctypes, moves the bytes on the host."""

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = r"""
void turn(const unsigned char *x, unsigned char *y, long rows, long half, long size, int first) {
  for (long row = 0; row < rows; row++)
    for (long col = 0; col < half; col++) {
      const unsigned char *a = x + (2 * half * row + col) * size, *b = a + half * size;
      unsigned char *p = y + (2 * half * row + col) * size, *q = p + half * size;
      for (long i = 0; i < size; i++) { p[i] = b[i]; q[i] = a[i]; }
      (first ? p : q)[size - 1] ^= 0x80; /* the sign is the highest bit */
    }
}
"""


@functools.cache
def _library():
    folder = Path(tempfile.mkdtemp())
    source, built = folder / "turn.c", folder / "turn.so"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", built, source], check=True)
    library = ctypes.CDLL(str(built))
    library.turn.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 3 + [ctypes.c_int]
    return library


def _turn(x, sign):
    host = x.detach().cpu().contiguous()
    y = torch.empty_like(host)
    if x.numel():
        half = x.shape[-1] // 2
        sizes = (x.numel() // (2 * half), half, x.itemsize)
        _library().turn(host.data_ptr(), y.data_ptr(), *sizes, sign > 0)
    return y.to(x.device)


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
