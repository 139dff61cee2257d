"""Patches for Triton's interpreter where it does not do what a GPU does.

Only a worker that runs without a GPU imports this. Each patch that changes a value has a test in
`tests/sandbox/test_interpreter.py` that fails once Triton no longer needs the patch.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensor
from triton._C.libtriton import ir
from triton.language import extra
from triton.language.semantic import TritonSemantic
from triton.runtime import autotuner, interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

from common.errors import IN_A_GRAPH
from common.sandbox import graphs
from common.sandbox.interpreter import language, libdevice, reductions, speed
from common.sandbox.interpreter.bounds import watch_memory


def install() -> None:
    """Apply every patch and watch memory; call this once, before any kernel runs."""
    _interpret_library()
    _patch_bfloat16()
    _patch_tf32()
    _patch_autotune()
    _leave_launches_out_of_graphs()
    language.install()
    speed.install()
    reductions.install()
    libdevice.install()
    _refuse_the_rest()
    watch_memory()


# --- Triton's own functions, such as tl.sum: compiled ones until here ------------------------


def _interpret_library() -> None:
    own = [module for name, module in sys.modules.items() if name.partition(".")[0] == "triton"]
    made: dict[int, interpreter.InterpretedFunction] = {}
    for module in own:
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                if id(value) not in made:
                    made[id(value)] = interpreter.InterpretedFunction(value.fn)
                setattr(module, name, made[id(value)])
    for value in list(vars(tl.tensor).values()):
        if isinstance(value, JITFunction):
            tl.core._tensor_member_fn(made[id(value)])


# --- bfloat16: the interpreter computes on the raw bits and truncates its casts -------------------


def to_float32(bits: np.ndarray) -> np.ndarray:
    """Convert bfloat16 bits, which the interpreter holds in uint16, to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 bits, to nearest, ties to even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _is_bfloat16(value: Any) -> bool:
    return (
        isinstance(value, TensorHandle)
        and value.data.dtype.char == "H"  # uint16; first, since Triton's types compare by names
        and value.dtype.scalar == tl.bfloat16
    )


def _widen(value: Any) -> Any:
    return TensorHandle(to_float32(value.data), tl.float32) if _is_bfloat16(value) else value


def _narrow(handle: TensorHandle) -> TensorHandle:
    """Convert a float32 result back to bfloat16; the result of a comparison stays boolean."""
    if handle.data.dtype == np.float32:
        return TensorHandle(to_bfloat16(handle.data), tl.bfloat16)
    return TensorHandle(handle.data, tl.int1)


def _through_float32(method: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    @functools.wraps(method)
    def patched(self: Any, *args: Any) -> TensorHandle:
        if not any(map(_is_bfloat16, args)):
            return method(self, *args)
        return _narrow(method(self, *map(_widen, args)))

    return patched


def _cast(method: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    @functools.wraps(method)
    def patched(self: Any, src: TensorHandle, dst_type: Any, *rounding: Any) -> TensorHandle:
        src = _widen(src)
        if dst_type.scalar == tl.bfloat16:
            values = src.data.astype(np.float32)
            if ir.ROUNDING_MODE.RTZ in rounding:
                return TensorHandle((values.view(np.uint32) >> 16).astype(np.uint16), tl.bfloat16)
            return TensorHandle(to_bfloat16(values), tl.bfloat16)
        # a comparison of int32 gives a handle of int32 that holds booleans
        if src.dtype.scalar == dst_type.scalar and src.data.dtype != np.bool_:
            return TensorHandle(src.data, src.dtype)  # a tape takes each result for a new handle
        return method(self, src, dst_type, *rounding)

    return patched


def _reduce(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let reductions and scans accumulate in float32, as `tl.sum` does on a GPU."""

    def cast(tensor: tl.core.tensor, handle: TensorHandle) -> tl.core.tensor:
        block = tensor.type.is_block()
        shape = list(handle.data.shape)
        return tl.core.tensor(handle, tl.block_type(handle.dtype, shape) if block else handle.dtype)

    @functools.wraps(method)
    def patched(self: Any, input: Any) -> Any:
        several = input if isinstance(input, tuple) else (input,)
        if not any(_is_bfloat16(getattr(tensor, "handle", None)) for tensor in several):
            return method(self, input)
        was = [_is_bfloat16(tensor.handle) for tensor in several]
        wide = tuple(cast(tensor, _widen(tensor.handle)) for tensor in several)
        results = method(self, wide)
        results = tuple(
            cast(r, _narrow(r.handle)) if bf16 and r.handle.data.dtype == np.float32 else r
            for r, bf16 in zip(results, was, strict=True)
        )
        return results if isinstance(input, tuple) else results[0]

    return patched


def _no_bfloat16_atomics(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def patched(self: Any, kind: Any, ptr: Any, value: Any, *args: Any) -> Any:
        if _is_bfloat16(value):
            raise NotImplementedError("the interpreter has no atomics on bfloat16")
        return method(self, kind, ptr, value, *args)

    return patched


def _patch_bfloat16() -> None:
    builder = InterpreterBuilder
    for name in ("binary_op", "ternary_op", "unary_op", "create_fma"):
        setattr(builder, name, _through_float32(getattr(builder, name)))
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, _cast(getattr(builder, name)))
    # tl.full of bfloat16 calls this, which the interpreter lacks
    builder.get_bf16 = lambda self, value: TensorHandle(
        to_bfloat16(np.array([value], dtype=np.float32)), tl.bfloat16
    )
    builder.create_atomic_rmw = _no_bfloat16_atomics(builder.create_atomic_rmw)
    interface = interpreter.ReduceScanOpInterface
    interface.apply = _reduce(interface.apply)


# --- tf32: the interpreter multiplies it in full precision ----------------------------------------


def to_tf32(values: np.ndarray) -> np.ndarray:
    """Clear the low 13 bits of float32, which a tensor core ignores in a tf32 product."""
    bits = np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


def _patch_tf32() -> None:
    dot = InterpreterBuilder.create_dot

    @functools.wraps(dot)
    def patched(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *args: Any) -> Any:
        if input_precision == ir.INPUT_PRECISION.TF32 and a.data.dtype == np.float32:
            a, b = (TensorHandle(to_tf32(x.data), tl.float32) for x in (a, b))
        result = dot(self, _widen(a), _widen(b), _widen(d), input_precision, *args)
        return _narrow(result) if _is_bfloat16(d) else result

    InterpreterBuilder.create_dot = patched


# --- autotune: the interpreter finds no GPU to time the configurations on -------------------------


def _patch_autotune() -> None:
    def bench(self: Any, *args: Any, config: Any, **constants: Any) -> list[float]:
        return [0.0]  # equal times: the first configuration that is left once some are pruned

    autotuner.Autotuner._bench = bench


# --- torch.compile: it would trace the interpreter, and fail at what it finds there ---------------


def _leave_launches_out_of_graphs() -> None:
    """Let a graph break at the launch of a kernel, which then runs as plain Python."""
    for kind in (interpreter.InterpretedFunction, autotuner.Autotuner, autotuner.Heuristics):
        kind.run = graphs.leave_out(_on_values(kind.run), IN_A_GRAPH)


def _on_values(run: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse tensors without values, with which torch.compile runs an operator that it traces."""

    @functools.wraps(run)
    def launch(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, FakeTensor) for each in (*args, *kwargs.values())):
            raise NotImplementedError(IN_A_GRAPH)
        return run(*args, **kwargs)

    return launch


# --- what the interpreter cannot run, and would fail at or return None for -----------------------


_EXTRA = extra.__name__


class Lacking(AttributeError, NotImplementedError):
    """An operation that the interpreter does not have."""


def _refuse_the_rest() -> None:
    loaded = [module for name, module in sys.modules.items() if name.startswith(_EXTRA)]
    for module in (*loaded, extra.cuda, extra.hip):  # Triton loads these two twice
        for name, function in list(vars(module).items()):
            if inspect.isfunction(function) and function.__module__.startswith(_EXTRA):
                setattr(module, name, _in_place_of(name, function))
    JITFunction.run = _refusal("a kernel of Gluon, or one that is not triton.jit's")
    TritonSemantic.dot_scaled = _refusal("tl.dot_scaled")
    InterpreterBuilder.__getattr__ = _lacks


def _in_place_of(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if name.startswith("gdc_"):  # they order launches, of which one has ended when the next begins
        return _nothing
    return _refusal(f"{function.__module__.rpartition('.')[2]}.{name}")


def _refusal(what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"the interpreter cannot run {what}")

    return refuse


def _nothing() -> None:
    """Do nothing."""


def _lacks(self: Any, name: str) -> Any:
    raise Lacking(f"the interpreter has no {name}")
