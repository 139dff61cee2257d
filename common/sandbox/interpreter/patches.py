"""Triton's interpreter, mended where it is not the GPU and watched where it touches memory.

Imported only in a worker that runs without a GPU. `install()` mends, `WATCH` watches. Each mend of
a value has a test in `tests/test_interpreter.py` that fails once Triton no longer needs it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.language.extra import libdevice
from triton.runtime import autotuner, interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor


def install() -> None:
    """Mend and watch; once, before any kernel runs."""
    _mend_bfloat16()
    _mend_tf32()
    _mend_autotune()
    _mend_speed()
    _refuse_libdevice()
    _watch_memory()


# --- bfloat16: the interpreter computes on the raw bits and truncates its casts -------------------


def to_float32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits, as the interpreter holds them in uint16, to the float32 of the same value."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 bits, to nearest, ties to even; a NaN stays one."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _is_bfloat16(value: Any) -> bool:
    return (
        isinstance(value, TensorHandle)
        and value.dtype.scalar == tl.bfloat16
        and value.data.dtype == np.uint16
    )


def _widen(value: Any) -> Any:
    return TensorHandle(to_float32(value.data), tl.float32) if _is_bfloat16(value) else value


def _narrow(handle: TensorHandle) -> TensorHandle:
    """Back from float32; what a comparison gave stays boolean."""
    if handle.data.dtype == np.float32:
        return TensorHandle(to_bfloat16(handle.data), tl.bfloat16)
    return TensorHandle(handle.data, tl.int1)


def _through_float32(method: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    @functools.wraps(method)
    def mended(self: Any, *args: Any) -> TensorHandle:
        if not any(map(_is_bfloat16, args)):
            return method(self, *args)
        return _narrow(method(self, *map(_widen, args)))

    return mended


def _cast(method: Callable[..., TensorHandle]) -> Callable[..., TensorHandle]:
    @functools.wraps(method)
    def mended(self: Any, src: TensorHandle, dst_type: Any, *rounding: Any) -> TensorHandle:
        src = _widen(src)
        if dst_type.scalar == tl.bfloat16:
            values = src.data.astype(np.float32)
            if ir.ROUNDING_MODE.RTZ in rounding:
                return TensorHandle((values.view(np.uint32) >> 16).astype(np.uint16), tl.bfloat16)
            return TensorHandle(to_bfloat16(values), tl.bfloat16)
        if src.dtype.scalar == dst_type.scalar:
            return src
        return method(self, src, dst_type, *rounding)

    return mended


def _reduce(method: Callable[..., Any]) -> Callable[..., Any]:
    """Reductions and scans accumulate in float32, as `tl.sum` does on a GPU."""

    def cast(tensor: tl.core.tensor, handle: TensorHandle) -> tl.core.tensor:
        block = tensor.type.is_block()
        shape = list(handle.data.shape)
        return tl.core.tensor(handle, tl.block_type(handle.dtype, shape) if block else handle.dtype)

    @functools.wraps(method)
    def mended(self: Any, input: Any) -> Any:
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

    return mended


def _no_bfloat16_atomics(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def mended(self: Any, kind: Any, ptr: Any, value: Any, *args: Any) -> Any:
        if _is_bfloat16(value):
            raise NotImplementedError("the interpreter has no atomics on bfloat16")
        return method(self, kind, ptr, value, *args)

    return mended


def _mend_bfloat16() -> None:
    builder = InterpreterBuilder
    for name in ("binary_op", "ternary_op", "unary_op", "create_fma"):
        setattr(builder, name, _through_float32(getattr(builder, name)))
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, _cast(getattr(builder, name)))
    builder.get_bf16 = lambda self, value: TensorHandle(  # absent there: tl.full of bfloat16
        to_bfloat16(np.array([value], dtype=np.float32)), tl.bfloat16
    )
    builder.create_atomic_rmw = _no_bfloat16_atomics(builder.create_atomic_rmw)
    interface = interpreter.ReduceScanOpInterface
    interface.apply = _reduce(interface.apply)


# --- tf32: the interpreter multiplies it in full precision ----------------------------------------


def to_tf32(values: np.ndarray) -> np.ndarray:
    """float32 as a tensor core reads it for a tf32 product: the low 13 bits are not looked at."""
    bits = np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


def _mend_tf32() -> None:
    dot = InterpreterBuilder.create_dot

    @functools.wraps(dot)
    def mended(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *args: Any) -> Any:
        if input_precision == ir.INPUT_PRECISION.TF32 and a.data.dtype == np.float32:
            a, b = (TensorHandle(to_tf32(x.data), tl.float32) for x in (a, b))
        result = dot(self, _widen(a), _widen(b), _widen(d), input_precision, *args)
        return _narrow(result) if _is_bfloat16(d) else result

    InterpreterBuilder.create_dot = mended


# --- autotune: the interpreter looks for a GPU to time the configurations on ----------------------


def _mend_autotune() -> None:
    run = autotuner.Autotuner.run

    @functools.wraps(run)
    def mended(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.configs = self.configs[:1]
        return run(self, *args, **kwargs)

    autotuner.Autotuner.run = mended


# --- speed: every call of a device function patches the whole language again, some milliseconds ---


def _mend_speed() -> None:
    patch = interpreter._patch_lang

    @functools.wraps(patch)
    def mended(fn: Any) -> Any:
        if WATCH.launch is None or fn in WATCH.launch.patched:
            return interpreter._LangPatchScope() if WATCH.launch else patch(fn)
        WATCH.launch.patched.add(fn)
        return patch(fn)

    interpreter._patch_lang = mended


# --- libdevice: the interpreter would return None -------------------------------------------------


def _refuse_libdevice() -> None:
    def refusal(name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"the interpreter cannot run libdevice.{name}")

        return refuse

    for name, function in list(vars(libdevice).items()):
        if inspect.isfunction(function):
            setattr(libdevice, name, refusal(name))


# --- memory: the interpreter reads and writes wherever a kernel points ----------------------------


class OutOfBounds(Exception):
    """A lane's address lies in none of the launch's arguments."""


@dataclass(frozen=True)
class Span:
    name: str
    first: int
    end: int

    def holds(self, first: int, end: int) -> bool:
        return self.first <= first and end <= self.end

    def distance(self, address: int) -> int:
        """Bytes between the span and the address."""
        return max(self.first - address, address - self.end + 1, 0)


@dataclass
class Launch:
    spans: list[Span]
    patched: set[Any] = field(default_factory=set)


class Call:
    """What was found of one graded call. Nobody but its maker can make it forget a fault."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._tally = itertools.count()

    def add(self, fault: str) -> None:
        self.faults.append(fault)
        next(self._tally)

    def fault(self) -> str | None:
        """The first one, also where a solution has emptied the list; asked once, at the end."""
        if next(self._tally) and not self.faults:
            return "an access, of which the solution removed the trace"
        return self.faults[0] if self.faults else None


@dataclass(slots=True)
class Watch:
    """What the running launch may touch, and every access that it may not have made."""

    inputs: list[Span] = field(default_factory=list)
    """The graded call's arguments: a kernel argument inside one of them may touch that one whole;
    any other may touch its storage."""
    backwards: bool = False
    """Programs run from the last to the first: nobody may rely on their order."""
    launch: Launch | None = None
    call: Call = field(default_factory=Call)

    def begin_call(self, tensors: dict[str, torch.Tensor], backwards: bool = False) -> Call:
        """A graded call begins, with these arguments."""
        self.backwards = backwards
        self.inputs = [_extent(name, tensor) for name, tensor in tensors.items()]
        self.call = Call()
        return self.call

    def check(self, access: str, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Raise OutOfBounds, and keep it should the solution swallow it, if a lane goes astray."""
        addresses = pointers.data
        if mask is not None:
            addresses = np.broadcast_to(addresses, np.broadcast_shapes(addresses.shape, mask.shape))
            addresses = addresses[np.broadcast_to(mask, addresses.shape)]
        if self.launch is None or not addresses.size:
            return
        width = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
        first, end = int(addresses.min()), int(addresses.max()) + width
        if any(span.holds(first, end) for span in self.launch.spans):
            return
        astray = np.ones(addresses.shape, dtype=bool)
        for span in self.launch.spans:
            astray &= (addresses < span.first) | (addresses + np.uint64(width) > span.end)
        if astray.any():
            fault = self._describe(access, int(addresses[astray].flat[0]), width)
            self.call.add(fault)
            raise OutOfBounds(fault)

    def _describe(self, access: str, address: int, width: int) -> str:
        assert self.launch is not None
        where = _kernel_line()
        if not self.launch.spans:
            return f"{access} memory in a launch without tensors, {where}"
        nearest = min(self.launch.spans, key=lambda span: span.distance(address))
        first, size = address - nearest.first, nearest.end - nearest.first
        what = f"{access} bytes {first} to {first + width} of {nearest.name}, which has {size}"
        return f"{what}, {where}"


WATCH = Watch()


def _extent(name: str, tensor: torch.Tensor) -> Span:
    """From a view's first element to the end of its last."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    elements = last + 1 if tensor.numel() else 0
    first = tensor.data_ptr()
    return Span(name, first, first + elements * tensor.element_size())


def _spans(name: str, argument: Any) -> Iterator[Span]:
    """What a kernel may touch through one argument of a launch."""
    if isinstance(argument, tuple):
        for index, part in enumerate(argument):
            yield from _spans(f"{name}[{index}]", part)
    elif isinstance(argument, TensorDescriptor | TensorWrapper):
        yield from _spans(name, argument.base)
    elif isinstance(argument, torch.Tensor):
        pointer = argument.data_ptr()
        known = [span for span in WATCH.inputs if span.first <= pointer < span.end]
        if known:
            yield Span(name, known[0].first, known[0].end)
        elif any(pointer == span.first == span.end for span in WATCH.inputs):
            yield Span(name, pointer, pointer)
        else:
            storage = argument.untyped_storage()
            yield Span(name, storage.data_ptr(), storage.data_ptr() + storage.nbytes())


_TRITON = os.path.dirname(triton.__file__) + os.sep


def _kernel_line() -> str:
    """`line 12 of rope.py: tl.store(...)`: the innermost line that is not Triton's or ours."""
    frame = sys._getframe(1)
    while frame.f_back and (
        frame.f_code.co_filename.startswith(_TRITON) or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    path, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(path, line).strip()
    return f"line {line} of {os.path.basename(path)}: {source}"


def _watch_memory() -> None:
    builder, executor = InterpreterBuilder, interpreter.GridExecutor
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas
    run, set_program = executor.__call__, builder.set_grid_idx

    def ordered(self: Any, *program: int) -> None:
        if WATCH.backwards:
            program = tuple(n - 1 - i for i, n in zip(program, self.grid_dim, strict=True))
        set_program(self, *program)

    def watched_load(self: Any, ptrs: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        WATCH.check("reads", ptrs, _bare(mask))
        return load(self, ptrs, _handle(mask), *args, **kwargs)

    def watched_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any) -> Any:
        WATCH.check("writes", ptrs, _bare(mask))
        return store(self, ptrs, value, _handle(mask), *args)

    def watched_rmw(self: Any, kind: Any, ptr: Any, value: Any, mask: Any, *args: Any) -> Any:
        WATCH.check("updates", ptr, mask.data)
        return rmw(self, kind, ptr, value, mask, *args)

    def watched_cas(self: Any, ptr: Any, *args: Any) -> Any:
        WATCH.check("updates", ptr, None)
        return cas(self, ptr, *args)

    def watched_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = {key: value for key, value in kwargs.items() if key in self.arg_names}
        arguments = inspect.getcallargs(self.fn, *args, **named)
        spans = [span for name, value in arguments.items() for span in _spans(name, value)]
        WATCH.launch = Launch(spans)
        try:
            with np.errstate(all="ignore"):  # a GPU does not warn of a NaN either
                return run(self, *args, **kwargs)
        finally:
            WATCH.launch = None

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    builder.create_atomic_rmw, builder.create_atomic_cas = watched_rmw, watched_cas
    executor.__call__, builder.set_grid_idx = watched_run, ordered


def _bare(mask: Any) -> np.ndarray:
    """A block pointer's mask comes as an array, every other as a handle."""
    array: np.ndarray = mask.data if isinstance(mask, TensorHandle) else mask
    return array


def _handle(mask: Any) -> TensorHandle:
    return mask if isinstance(mask, TensorHandle) else TensorHandle(mask, tl.int1)
