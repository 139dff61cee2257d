"""Patches for Triton's interpreter where its results differ from a GPU's.

Only a worker that interprets kernels calls `install`. Each patch that changes a value has a test in
`tests/sandbox/` that fails once Triton no longer needs the patch.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensor
from triton._C.libtriton import ir
from triton.language import extra
from triton.language.extra import cuda, libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime import autotuner, interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_semantic
from triton.runtime.jit import JITFunction

from common.errors import IN_A_GRAPH, Kind
from common.sandbox import configurations, target
from common.sandbox.interpreter import language
from common.sandbox.interpreter.bounds import watch_memory
from common.sandbox.interpreter.operations import Operation, wrap
from common.sandbox.launches import LOG, leave_out


def install() -> None:
    """Apply every patch and watch memory; call this once, before any kernel is imported."""
    _interpret_library()
    # for good, not at each launch and each call of a device function, which takes a millisecond
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    configurations.install()
    for owner, name, wrapper in (*WRAPPED, *language.WRAPPED):
        wrap(owner, name, wrapper)
    for owner, name, value in (*REPLACED, *language.REPLACED):
        setattr(owner, name, value)
    for launcher in LAUNCHERS:  # torch.compile breaks its graph at a launch, which stays Python
        leave_out(launcher.run, IN_A_GRAPH)
    _interpret_libdevice()
    _refuse_missing_operations()
    watch_memory()


# --- Triton's own functions, such as tl.sum, which are compiled functions at import ---------------


def _interpret_library() -> None:
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "triton"]
    interpreted = functools.cache(interpreter.InterpretedFunction)
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                setattr(module, name, interpreted(value.fn))
    for value in list(vars(tl.tensor).values()):
        if isinstance(value, JITFunction):
            tl.core._tensor_member_fn(interpreted(value.fn))


# --- low heap addresses come as 32-bit integers, which numpy cannot view as uint64 ----------------


def _int_to_ptr(method: Operation, builder: Any, source: TensorHandle, dtype: Any) -> TensorHandle:
    return method(builder, TensorHandle(source.data.astype(np.uint64), tl.uint64), dtype)


# --- bfloat16: the interpreter computes on the raw bits and truncates its casts -------------------


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 bits, to nearest, ties to even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _is_bfloat16(value: Any) -> bool:
    return (
        isinstance(value, TensorHandle)
        and value.data.dtype.char == "H"  # uint16; first, since Triton's types compare slowly
        and value.dtype.scalar == tl.bfloat16
    )


def _widen(value: Any) -> Any:
    """Convert bfloat16, whose bits the interpreter holds in uint16, to float32."""
    if not _is_bfloat16(value):
        return value
    return TensorHandle((value.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _narrow(handle: TensorHandle) -> TensorHandle:
    """Convert a float32 result back to bfloat16; the result of a comparison stays boolean."""
    if handle.data.dtype == np.float32:
        return TensorHandle(to_bfloat16(handle.data), tl.bfloat16)
    return TensorHandle(handle.data, tl.int1)


def _through_float32(method: Operation, builder: Any, *args: Any) -> TensorHandle:
    if not any(map(_is_bfloat16, args)):
        return method(builder, *args)
    return _narrow(method(builder, *map(_widen, args)))


def _cast(
    method: Operation, builder: Any, src: TensorHandle, dst_type: Any, *rounding: Any
) -> TensorHandle:
    src = _widen(src)
    if dst_type.scalar == tl.bfloat16:
        values = src.data.astype(np.float32)
        if ir.ROUNDING_MODE.RTZ in rounding:
            return TensorHandle((values.view(np.uint32) >> 16).astype(np.uint16), tl.bfloat16)
        return TensorHandle(to_bfloat16(values), tl.bfloat16)
    # a comparison of int32 gives a handle of int32 that holds booleans
    if src.dtype.scalar == dst_type.scalar and src.data.dtype != np.bool_:
        return TensorHandle(src.data, src.dtype)
    return method(builder, src, dst_type, *rounding)


def _reduce(method: Operation, self: Any, input: Any) -> Any:
    """Accumulate reductions and scans of bfloat16 in float32, as `tl.sum` does on a GPU."""
    inputs = input if isinstance(input, tuple) else (input,)
    if (self.axis or 0) < 0:  # Triton's own way of an axis from the end fails
        self.axis += len(inputs[0].shape)
    if all(tensor.dtype != tl.bfloat16 for tensor in inputs):
        return method(self, input)
    wide = (x.to(tl.float32) if x.dtype == tl.bfloat16 else x for x in inputs)
    results = tuple(
        result.to(tensor.dtype) if result.dtype == tl.float32 else result
        for result, tensor in zip(method(self, tuple(wide)), inputs, strict=True)
    )
    return results if isinstance(input, tuple) else results[0]


def _atomic_rmw(method: Operation, builder: Any, op: Any, ptr: Any, value: Any, *args: Any) -> Any:
    if _is_bfloat16(value):
        raise NeedsGPU("the interpreter has no atomics on bfloat16")
    if op == ir.ATOMIC_OP.XCHG and value.dtype.is_floating():  # which it has for integers alone
        bits = TensorHandle(value.data.view(f"i{value.data.itemsize}"), value.dtype)
        old = method(builder, op, ptr, bits, *args)
        return TensorHandle(old.data.view(value.data.dtype), old.dtype)
    return method(builder, op, ptr, value, *args)


# --- products: an element's rounding may depend on its place in the tile, and tf32 is in full ----


def _dot(
    builder: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, precision: Any, *args: Any
) -> TensorHandle:
    """Multiply as a tensor core does: each element is summed in one order, wherever it stands.

    BLAS sums the edges of a tile in another order, so that the same token got other bits in another
    row. A tf32 product ignores the low 13 bits of float32.
    """
    total = _widen(d)
    factors = [_factor(each, total.data.dtype, precision) for each in (a, b)]
    product = np.einsum("...ij,...jk->...ik", *factors)
    result = TensorHandle(product + total.data, total.dtype.scalar)
    return _narrow(result) if _is_bfloat16(d) else result


def _factor(handle: TensorHandle, dtype: np.dtype[Any], precision: Any) -> np.ndarray:
    """Return an operand of a product in the dtype of the sum, in the order of C."""
    handle = _widen(handle)
    values = handle.data
    if handle.dtype.primitive_bitwidth == 8 and handle.dtype.is_floating():
        values = interpreter._convert_float(values, handle.dtype, tl.float16, None).view(np.float16)
    if precision == ir.INPUT_PRECISION.TF32 and values.dtype == np.float32:
        bits = np.ascontiguousarray(values).view(np.uint32) & ~np.uint32(0x1FFF)
        values = bits.view(np.float32)
    return np.ascontiguousarray(values, dtype=dtype)


# --- launches: torch.compile cannot trace the interpreter -----------------------------------------


def _launch(run: Operation, launcher: Any, *args: Any, **options: Any) -> Any:
    """Log a launch, and reject FakeTensors, with which torch.compile traces operators."""
    if any(isinstance(arg, FakeTensor) for arg in (*args, *options.values())):
        raise NeedsGPU(IN_A_GRAPH)
    return LOG.watched(run)(launcher, *args, **options)


# --- operations that the interpreter lacks, for which it would fail or return None ----------------


class NeedsGPU(NotImplementedError, AttributeError):
    """The interpreter cannot run a kernel that a GPU runs; it may lack a method for it."""

    kind = Kind.NO_GPU


def _refuse_missing_operations() -> None:
    package = extra.__name__
    loaded = [module for name, module in sys.modules.items() if name.startswith(package)]
    for module in (*loaded, extra.cuda, extra.hip):  # Triton loads cuda and hip twice
        for name, function in list(vars(module).items()):
            if inspect.isfunction(function) and function.__module__.startswith(package):
                refusal = _refusal(f"{function.__module__.rpartition('.')[2]}.{name}")
                # gdc_wait and its like order overlapping launches; here launches never overlap
                setattr(module, name, (lambda: None) if name.startswith("gdc_") else refusal)


def _refusal(operation: str) -> Operation:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NeedsGPU(f"the interpreter cannot run {operation}")

    return refuse


def _raise_lacking(self: Any, name: str) -> Any:
    raise NeedsGPU(f"the interpreter has no {name}")


# --- functions of libdevice -----------------------------------------------------------------------

NUMPY: dict[str, Operation | None] = {
    "add": np.add, "div": np.divide, "erf": interpreter.np_erf_fp64, "fdivide": np.divide,
    "finite": np.isfinite, "fma": lambda x, y, z: x * y + z,  # as Triton's interpreter does
    "llabs": np.abs, "llrint": np.rint, "mul": np.multiply, "nearbyint": np.rint, "powi": np.pow,
    "rcp": np.reciprocal, "remainder": None, "rsqrt": lambda x: 1 / np.sqrt(x), "scalbn": np.ldexp,
    "sub": np.subtract,
}  # fmt: skip
"""NumPy's functions by their names in libdevice, if NumPy has other names; None if it has none."""


def _by_numpy(symbol: str) -> Operation | None:
    """Return NumPy's function for a symbol of libdevice, `__nv_fast_sinf`; None if it has none."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    if name.endswith("_rn"):  # `__nv_fadd_rn` rounds to nearest, as NumPy does
        name = name[1:].removesuffix("_rn")
    for each in (name, name.removesuffix("f"), name.removesuffix("d")):  # of float or double
        function = NUMPY.get(each, getattr(np, each, None))
        if each in NUMPY or isinstance(function, np.ufunc):
            return function
    return None


def _interpret_libdevice() -> None:
    for name, function in list(vars(cuda.libdevice).items()):
        if tl.core.is_builtin(function):
            for module in (cuda.libdevice, libdevice):
                setattr(module, name, functools.partial(function, _semantic=interpreter_semantic))


def _libdevice_result(
    self: Any, library: str, path: str, symbol: str, operands: Any, dtype: Any, pure: bool
) -> TensorHandle:
    """Return the result of a libdevice function for each element."""
    if (function := _by_numpy(symbol)) is None:
        raise NeedsGPU(f"the interpreter cannot run {symbol.replace('__nv_', 'libdevice.')}")
    result = function(*(operand.data for operand in operands))
    return TensorHandle(result.astype(interpreter._get_np_dtype(dtype)), dtype.scalar)


# --- reductions by exclusive or, of which `tl.flip`, `tl.sort` and `tl.topk` consist --------------


def _apply(apply_impl: Operation, self: Any, input: Sequence[Any]) -> Any:
    """Reduce by exclusive or at once: Triton calls any other combine function for each element."""
    if self.combine_fn != tl.standard._xor_combine:
        return apply_impl(self, input)
    array = np.bitwise_xor.reduce(input[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
    return self.to_tensor(array, input[0].dtype)


# --- speed ----------------------------------------------------------------------------------------


def _only_in_debug_mode(check: Callable[..., None], self: Any, *operands: Any) -> None:
    """Skip a check in int64 whose assertion has an effect only in debug mode."""
    if self.builder.options.debug:
        check(self, *operands)


_np_dtype_of_number = functools.cache(interpreter._get_np_dtype)
"""Triton's own function makes a dict of all types at each call, in every operation."""


def _np_dtype_of(scalar: tl.dtype) -> np.dtype[Any]:
    return np.dtype(np.uint64) if scalar.is_ptr() else _np_dtype_of_number(scalar)


# --- the patches ----------------------------------------------------------------------------------

LAUNCHERS = (interpreter.InterpretedFunction, autotuner.Autotuner, autotuner.Heuristics)
WRAPPED: tuple[tuple[Any, str, Operation], ...] = (
    (InterpreterBuilder, "create_int_to_ptr", _int_to_ptr),
    *((InterpreterBuilder, name, _through_float32)
      for name in ("binary_op", "ternary_op", "unary_op", "create_fma")),
    (InterpreterBuilder, "cast_impl", _cast),
    (InterpreterBuilder, "create_fp_to_fp", _cast),
    (InterpreterBuilder, "create_atomic_rmw", _atomic_rmw),
    (interpreter.ReduceScanOpInterface, "apply", _reduce),
    (interpreter.ReduceOps, "apply_impl", _apply),
    (TritonSemantic, "binary_op_sanitize_overflow_impl", _only_in_debug_mode),
    *((launcher, "run", _launch) for launcher in LAUNCHERS),
)  # fmt: skip
"""Functions and their wrappers, which get the original function first."""
REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (interpreter, "_get_np_dtype", lambda dtype: _np_dtype_of(dtype.scalar)),
    (interpreter, "_patch_lang", lambda fn: interpreter._LangPatchScope()),
    # of a constant, as in tl.full; the interpreter lacks this method
    (InterpreterBuilder, "get_bf16", lambda self, value: _narrow(self.get_fp32(value))),
    (InterpreterBuilder, "create_dot", _dot),
    (InterpreterBuilder, "create_extern_elementwise", _libdevice_result),
    (InterpreterBuilder, "__getattr__", _raise_lacking),
    (TritonSemantic, "dot_scaled", _refusal("tl.dot_scaled")),
    (JITFunction, "run", _refusal("a kernel of Gluon, or one that is not triton.jit's")),
    # launchers ask the kernel that warmup compiles for its resources, then launch it
    (interpreter.InterpretedFunction, "warmup", lambda kernel, *_, **__: kernel),
    (interpreter.InterpretedFunction, "_init_handles", lambda kernel: None),
    (interpreter.InterpretedFunction, "n_regs", target.REGISTERS),
    (interpreter.InterpretedFunction, "n_spills", 0),
    (interpreter.InterpretedFunction, "metadata", SimpleNamespace(shared=target.SHARED)),
)
"""Attributes and their values."""
