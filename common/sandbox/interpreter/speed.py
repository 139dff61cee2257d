"""Patches that speed up Triton's interpreter by caching results that it would compute again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from common.sandbox.interpreter.operations import wrap


def install() -> None:
    """Apply these patches; call this once, before any kernel runs."""
    wrap(interpreter, "_patch_lang", _patch_once)
    wrap(interpreter, "_patch_lang_tensor", _transpose_by_operation)
    wrap(interpreter, "_get_np_dtype", functools.partial(_once_per_type, {}))
    wrap(tl.block_type, "__init__", functools.partial(_once_per_block_type, {}))
    wrap(TritonSemantic, "binary_op_sanitize_overflow_impl", _only_in_debug_mode)


def _patch_once(patch: Callable[[Any], Any], fn: Any) -> Any:
    """Patch the language once per launch, not at each call of a device function."""
    patched = not any(map(tl.core.is_builtin, (tl.load, tl.core.load, tl.tensor.to)))
    return interpreter._LangPatchScope() if patched else patch(fn)


def _transpose_by_operation(patch: Callable[..., None], tensor: Any, scope: Any) -> None:
    """Make `T` an operation of the builder, as in Triton's compiler.

    Triton's interpreter transposes the data in Python, which several programs cannot do at once.
    """
    patch(tensor, scope)
    transposed = property(lambda self: interpreter.interpreter_semantic.permute(self, (1, 0)))
    scope.set_attr(tensor, "T", transposed)


def _once_per_type(cache: dict[str, Any], convert: Callable[[Any], Any], tt_dtype: Any) -> Any:
    """Cache the numpy dtype of each scalar type by the type's name, since types hash slowly."""
    scalar = tt_dtype.scalar
    if scalar.name not in cache:
        cache[scalar.name] = convert(scalar)
    return cache[scalar.name]


def _once_per_block_type(
    cache: dict[Any, dict[str, Any]],
    init: Callable[..., None],
    self: Any,
    element_ty: Any,
    shape: Any,
) -> None:
    """Validate and name each block type once: a kernel's operations use the same few types."""
    key = (element_ty.name, *shape)
    if any(type(size) is not int for size in key[1:]):
        init(self, element_ty, shape)
        return
    if key not in cache:
        init(self, element_ty, shape)
        cache[key] = dict(vars(self))
    vars(self).update(cache[key], element_ty=element_ty)


def _only_in_debug_mode(check: Callable[..., None], self: Any, *operands: Any) -> None:
    """Skip a check in int64 whose assertion has an effect only in debug mode."""
    if self.builder.options.debug:
        check(self, *operands)
