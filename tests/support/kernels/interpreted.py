"""Kernels that Triton's interpreter gets wrong, unless it is patched."""

import functools

import torch
import triton
import triton.language as tl


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


N = 16


def run_binary(kind):
    x, y = torch.linspace(-3, 2, N).bfloat16(), torch.linspace(0.7, 5, N).bfloat16()
    out = torch.zeros(N, dtype=torch.bfloat16)
    binary[(1,)](x, y, out, N, kind)
    return out


def run_cast(source, target):
    values = torch.tensor(
        [1.00390625, 1.01171875, -3.14159, 65504.0, 1e-3, 7.0, -0.0, float("nan")]
    )
    out = torch.zeros(8, dtype=target)
    cast[(1,)](values.to(source), out, 8)
    return out


def run_reduce(kind):
    out = torch.zeros(1, dtype=torch.bfloat16)
    reduce[(1,)](torch.linspace(-3, 2.5, N).bfloat16(), out, N, kind)
    return out


def run_dot(dtype, precision):
    torch.manual_seed(0)
    x, y = torch.randn(N, N).to(dtype), torch.randn(N, N).to(dtype)
    out = torch.zeros(N, N)
    dot[(1,)](x, y, out, N, precision)
    return out


def run_integers(dtype, kind):
    x = torch.tensor([3, -7, 100, 60_000, 70_000, 2**31 - 1, -(2**31), 46_341] * 2).to(dtype)
    out = torch.zeros(N, dtype=dtype)
    binary[(1,)](x, x, out, N, kind)
    return out


def run_tuned():
    out = torch.zeros(8)
    tuned[(1,)](out)
    return out


def run_low_address():
    out = torch.zeros(1, dtype=torch.int64)
    low_address[(1,)](1 << 20, out)
    return out


CALLS = {
    **{f"bfloat16 {kind}": (run_binary, kind) for kind in
       ("add", "multiply", "divide", "maximum", "less", "negate", "constant", "fma", "clamp")},
    "float32 to bfloat16": (run_cast, torch.float32, torch.bfloat16),
    "float16 to bfloat16": (run_cast, torch.float16, torch.bfloat16),
    "bfloat16 to float16": (run_cast, torch.bfloat16, torch.float16),
    "bfloat16 to float32": (run_cast, torch.bfloat16, torch.float32),
    **{f"bfloat16 {kind}": (run_reduce, kind) for kind in ("sum", "max", "reduce")},
    "bfloat16 dot": (run_dot, torch.bfloat16, "ieee"),
    "tf32 dot": (run_dot, torch.float32, "tf32"),
    "ieee dot": (run_dot, torch.float32, "ieee"),
    **{f"{name} {kind}": (run_integers, getattr(torch, name), kind)
       for name in ("int8", "int32", "int64") for kind in ("add", "multiply")},
    "int32 count": (run_integers, torch.int32, "count"),
    "autotune": (run_tuned,),
    "address of 32 bits": (run_low_address,),
}  # fmt: skip
RUNS = {name: functools.partial(*call) for name, call in CALLS.items()}
