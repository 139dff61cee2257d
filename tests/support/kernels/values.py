"""Kernels whose values Triton's interpreter gets wrong, unless it is patched.

A GPU's results are those of torch on the CPU, whose bfloat16 rounds once an operation.
"""

import torch
import triton
import triton.language as tl

N = 16


@triton.jit
def binary(x, y, out, N: tl.constexpr, KIND: tl.constexpr):
    lanes = tl.arange(0, N)
    a, b = tl.load(x + lanes), tl.load(y + lanes)
    if KIND == "add":
        tl.store(out + lanes, a + b)
    elif KIND == "multiply":
        tl.store(out + lanes, a * b)
    elif KIND == "divide":
        tl.store(out + lanes, (a / b).to(tl.bfloat16))
    elif KIND == "maximum":
        tl.store(out + lanes, tl.maximum(a, b))
    elif KIND == "less":
        tl.store(out + lanes, tl.where(a < b, a, b))
    elif KIND == "negate":
        tl.store(out + lanes, -a)
    elif KIND == "fma":
        tl.store(out + lanes, tl.fma(a, b, a))
    elif KIND == "clamp":
        tl.store(out + lanes, tl.clamp(a, -b, b))
    elif KIND == "count":
        tl.store(out + lanes, (a > 0).to(tl.int32) + (b > 0).to(tl.int32))
    elif KIND == "constant":
        tl.store(out + lanes, a + tl.full((N,), 1.5, tl.bfloat16))


@triton.jit
def cast(x, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + lanes).to(out.dtype.element_ty))


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def reduce(x, out, N: tl.constexpr, KIND: tl.constexpr):
    values = tl.load(x + tl.arange(0, N))
    if KIND == "sum":
        tl.store(out, tl.sum(values, 0).to(tl.bfloat16))
    elif KIND == "max":
        tl.store(out, tl.max(values, 0))
    else:
        tl.store(out, tl.reduce(values, 0, _add))


@triton.jit
def dot(x, y, out, N: tl.constexpr, PRECISION: tl.constexpr):
    lanes = tl.arange(0, N)
    square = lanes[:, None] * N + lanes[None, :]
    a, b = tl.load(x + square), tl.load(y + square)
    tl.store(out + square, tl.dot(a, b, input_precision=PRECISION))


@triton.autotune(
    configs=[triton.Config({"N": n}) for n in (2, 4, 8)],
    key=[],
    prune_configs_by={"early_config_prune": lambda configs, named, **options: configs[1:]},
)
@triton.jit
def tuned(out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tl.full((N,), N, tl.float32))


@triton.jit
def low_address(address, out):
    tl.store(out, address.to(tl.pointer_type(tl.float32)).to(tl.int64))


def launched(kernel, wanted, inputs, *constants):
    """Return a call of a kernel, and the tensor that it is to write."""

    def call():
        out = torch.zeros_like(wanted, dtype=torch.float32 if kernel is dot else wanted.dtype)
        kernel[(1,)](*inputs, out, *constants)
        return out

    return call, wanted


def cut(values):
    """Cut to the 10 bits of mantissa that a tensor core reads, as observed on an H200."""
    return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)


X, Y = torch.linspace(-3, 2, N).bfloat16(), torch.linspace(0.7, 5, N).bfloat16()
ROW = torch.linspace(-3, 2.5, N).bfloat16()
A, B = torch.randn(2, N, N, generator=torch.Generator().manual_seed(0))
LOW_A, LOW_B = A.bfloat16(), B.bfloat16()
VALUES = torch.tensor([1.00390625, 1.01171875, -3.14159, 65504.0, 1e-3, 7.0, -0.0, torch.nan])
WHOLE = torch.tensor([3, -7, 100, 60_000, 70_000, 2**31 - 1, -(2**31), 46_341] * 2)
INTEGERS = [WHOLE.to(dtype) for dtype in (torch.int8, torch.int32, torch.int64)]
BINARY = {
    "add": X + Y, "multiply": X * Y, "divide": X / Y, "maximum": torch.maximum(X, Y),
    "less": torch.where(X < Y, X, Y), "negate": -X, "constant": X + X.new_tensor(1.5),
    "fma": (X.float() * Y.float() + X.float()).bfloat16(),
    "clamp": torch.minimum(torch.maximum(X, -Y), Y),
}  # fmt: skip
CASTS = [(VALUES, torch.bfloat16), (VALUES.half(), torch.bfloat16),
         (VALUES.bfloat16(), torch.float16), (VALUES.bfloat16(), torch.float32)]  # fmt: skip
SUM = ROW.float().sum().bfloat16()
CASES = {
    **{f"bfloat16 {kind}": launched(binary, y, (X, Y), N, kind) for kind, y in BINARY.items()},
    **{f"{x.dtype} add": launched(binary, x + x, (x, x), N, "add") for x in INTEGERS},
    **{f"{x.dtype} multiply": launched(binary, x * x, (x, x), N, "multiply") for x in INTEGERS},
    "counted": launched(binary, 2 * (WHOLE > 0).int(), (INTEGERS[1], INTEGERS[1]), N, "count"),
    **{f"{x.dtype} to {to}": launched(cast, x.to(to), (x,), 8) for x, to in CASTS},
    **{f"bfloat16 {kind}": launched(reduce, wanted.reshape(1), (ROW,), N, kind)
       for kind, wanted in (("sum", SUM), ("max", ROW.max()), ("reduce", SUM))},
    "bfloat16 dot": launched(dot, LOW_A.double() @ LOW_B.double(), (LOW_A, LOW_B), N, "ieee"),
    "tf32 dot": launched(dot, cut(A).double() @ cut(B).double(), (A, B), N, "tf32"),
    "ieee dot": launched(dot, A.double() @ B.double(), (A, B), N, "ieee"),
    "autotune": launched(tuned, torch.tensor([4.0] * 4 + [0.0] * 4), ()),
    "address of 32 bits": launched(low_address, torch.tensor([1 << 20]), (1 << 20,)),
}  # fmt: skip
