"""Patches that make Triton's interpreter quicker: it repeats work that gives the same again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from common.sandbox.interpreter.bounds import WATCH


def install() -> None:
    """Apply these patches; call this once, before any kernel runs."""
    interpreter._patch_lang = _once_a_launch(interpreter._patch_lang)
    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_lang_tensor = _transposed_by_an_operation(interpreter._patch_lang_tensor)
    interpreter._get_np_dtype = _once_a_type(interpreter._get_np_dtype)
    tl.block_type.__init__ = _once_a_block(tl.block_type.__init__)
    tl.tensor.__init__ = _once_a_kind(tl.tensor.__init__)
    check = TritonSemantic.binary_op_sanitize_overflow_impl
    TritonSemantic.binary_op_sanitize_overflow_impl = _in_debug_alone(check)
    TensorHandle.__init__ = _handle
    TensorHandle.get_element_ty = _element_type
    # all is on the host: nothing is copied there, and nothing is written back
    interpreter.GridExecutor._init_args_hst = lambda _, args, named: (args, named)
    interpreter.GridExecutor._restore_args_dev = lambda *_: None


def _handle(self: Any, data: np.ndarray, dtype: Any, attr: dict[str, Any] | None = None) -> None:
    """Make a handle, and validate it without a property or a call where its type is a scalar."""
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
    if type(dtype) is tl.dtype and data.itemsize * 8 <= dtype.primitive_bitwidth:
        return
    self.__post_init__()


def _element_type(self: Any) -> Any:
    """Return the type of an element, without an exception raised on the way."""
    kind = self.dtype
    while (inner := getattr(kind, "element_ty", None)) is not None:
        kind = inner
    return kind


def _once_a_launch(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Patch the language for a function once, not at each call of a device function."""

    @functools.wraps(patch)
    def patched(fn: Any) -> Any:
        if WATCH.launch is None or fn in WATCH.launch.patched:
            return interpreter._LangPatchScope() if WATCH.launch else patch(fn)
        WATCH.launch.patched.add(fn)
        return patch(fn)

    return patched


@functools.cache
def _builtins_of(owner: Any) -> list[tuple[str, Any]]:
    """Return a module's or a class's builtins, before they were patched, by name."""
    return [each for each in inspect.getmembers(owner) if tl.core.is_builtin(each[1])]


def _patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
    """Patch an owner's builtins, which Triton looks for among all its members in each launch."""
    for name, member in _builtins_of(owner):
        interpreter._patch_attr(owner, name, member, builder, scope)


def _transposed_by_an_operation(patch: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Let `T` be the operation that Triton's compiler makes of it.

    Triton's interpreter reads the block in Python, so that no other program could replay it.
    """

    @functools.wraps(patch)
    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        turned = property(lambda self: interpreter.interpreter_semantic.permute(self, (1, 0)))
        scope.set_attr(tensor, "T", turned)

    return patched


def _once_a_type(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keep the numpy type of each scalar type, by its name: types themselves hash slowly."""
    known: dict[str, Any] = {}

    @functools.wraps(convert)
    def patched(tt_dtype: Any) -> Any:
        scalar = tt_dtype.scalar
        if scalar.name not in known:
            known[scalar.name] = convert(scalar)
        return known[scalar.name]

    return patched


def _once_a_block(init: Callable[..., None]) -> Callable[..., None]:
    """Validate and name each block type once: a kernel makes the same few at every operation."""
    known: dict[Any, dict[str, Any]] = {}

    @functools.wraps(init)
    def patched(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *shape)
        if any(type(size) is not int for size in key[1:]):
            init(self, element_ty, shape)
            return
        if key not in known:
            init(self, element_ty, shape)
            known[key] = vars(self) | {TENSORS: {}}
        vars(self).update(known[key], element_ty=element_ty)

    return patched


TENSORS = "attributes_of_tensors"
"""The attribute of a block type that holds what all tensors of the type have in common."""


def _once_a_kind(init: Callable[..., None]) -> Callable[..., None]:
    """Work out a tensor's shape once for each block type that _once_a_block has made."""

    @functools.wraps(init)
    def patched(self: Any, handle: Any, type: Any) -> None:
        common = getattr(type, TENSORS, None)
        if not common:
            init(self, handle, type)
            if common is not None:
                common.update(vars(self))
        else:
            vars(self).update(common, handle=handle, type=type, dtype=type.scalar)

    return patched


def _in_debug_alone(check: Callable[..., None]) -> Callable[..., None]:
    """Skip a check that does its work in int64 and then asserts nothing unless debugging is on."""

    @functools.wraps(check)
    def patched(self: Any, *operands: Any) -> None:
        if self.builder.options.debug:
            check(self, *operands)

    return patched
