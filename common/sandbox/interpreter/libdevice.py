"""Functions of CUDA's libdevice, computed by NumPy; Triton's interpreter returns None or raises.

Triton itself chooses a function's symbol and its result's type by the types of the arguments, as
for a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.extra import cuda, libdevice
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_semantic

SAME = (
    "abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh exp exp2 expm1 fabs "
    "floor fmod hypot isfinite isinf isnan ldexp log log10 log1p log2 nextafter pow rint signbit "
    "sin sinh sqrt tan tanh trunc"
).split()
"""The functions that have NumPy's name."""
OTHERS: dict[str, Callable[..., Any]] = {
    "erf": interpreter.np_erf_fp64,
    "fdivide": np.divide,
    "finite": np.isfinite,
    "fma": lambda x, y, z: x * y + z,  # as Triton's interpreter does for tl.fma
    "llabs": np.abs,
    "llrint": np.rint,
    "nearbyint": np.rint,
    "powi": np.pow,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "scalbn": np.ldexp,
}
ROUNDED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "div": np.divide,
    "mul": np.multiply,
    "rcp": np.reciprocal,
    "rsqrt": OTHERS["rsqrt"],
    "sqrt": np.sqrt,
    "sub": np.subtract,
}
"""Those whose name says that they round to nearest, as NumPy does."""
SYMBOLS = {
    f"__nv_{start}{name}{kind}": function
    for name, function in ({name: getattr(np, name) for name in SAME} | OTHERS).items()
    for start in ("", "fast_")
    for kind in ("", "f", "d")
} | {f"__nv_{kind}{name}_rn": function for name, function in ROUNDED.items() for kind in "fd"}
"""NumPy's functions by libdevice's symbols, of which some do not exist."""


def install() -> None:
    """Apply these patches; call this once, before any kernel runs."""
    InterpreterBuilder.create_extern_elementwise = _computed
    for name, function in list(vars(cuda.libdevice).items()):
        if tl.core.is_builtin(function):
            for module in (cuda.libdevice, libdevice):
                setattr(module, name, functools.partial(function, _semantic=interpreter_semantic))


def _computed(
    self: Any,
    library: str,
    path: str,
    symbol: str,
    operands: Sequence[TensorHandle],
    kind: Any,
    pure: bool,
) -> TensorHandle:
    """Return what a function of a library gives for each element."""
    if symbol not in SYMBOLS:
        name = symbol.replace("__nv_", "libdevice.")
        raise NotImplementedError(f"the interpreter cannot run {name}")
    result = SYMBOLS[symbol](*(each.data for each in operands))
    return TensorHandle(result.astype(interpreter._get_np_dtype(kind)), kind.scalar)
