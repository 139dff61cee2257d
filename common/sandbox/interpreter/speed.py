"""Patches that make Triton's interpreter quicker: it repeats work that gives the same again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from common.sandbox.interpreter.bounds import WATCH
from common.sandbox.interpreter.wrap import wrap


def install() -> None:
    """Apply these patches; call this once, before any kernel runs."""
    wrap(interpreter, "_patch_lang", _once_a_launch)
    wrap(interpreter, "_patch_lang_tensor", _transposed_by_an_operation)
    wrap(interpreter, "_get_np_dtype", functools.partial(_once_a_type, {}))
    wrap(tl.block_type, "__init__", functools.partial(_once_a_block, {}))
    wrap(TritonSemantic, "binary_op_sanitize_overflow_impl", _in_debug_alone)
    interpreter._patch_builtin = _patch_builtin
    # all is on the host: nothing is copied there, and nothing is written back
    interpreter.GridExecutor._init_args_hst = lambda _, args, named: (args, named)
    interpreter.GridExecutor._restore_args_dev = lambda *_: None


def _once_a_launch(patch: Callable[[Any], Any], fn: Any) -> Any:
    """Patch the language for a function once, not at each call of a device function."""
    if WATCH.launch is None:
        return patch(fn)
    if fn in WATCH.launch.patched:
        return interpreter._LangPatchScope()
    WATCH.launch.patched.add(fn)
    return patch(fn)


@functools.cache
def _builtins_of(owner: Any) -> list[tuple[str, Any]]:
    """Return a module's or a class's builtins, before they were patched, by name."""
    return [
        getmember for getmember in inspect.getmembers(owner) if tl.core.is_builtin(getmember[1])
    ]


def _patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
    """Patch an owner's builtins, which Triton looks for among all its members in each launch."""
    for name, member in _builtins_of(owner):
        interpreter._patch_attr(owner, name, member, builder, scope)


def _transposed_by_an_operation(patch: Callable[..., None], tensor: Any, scope: Any) -> None:
    """Let `T` be the operation that Triton's compiler makes of it.

    Triton's interpreter reads the block in Python, so that no other program could replay it.
    """
    patch(tensor, scope)
    turned = property(lambda self: interpreter.interpreter_semantic.permute(self, (1, 0)))
    scope.set_attr(tensor, "T", turned)


def _once_a_type(known: dict[str, Any], convert: Callable[[Any], Any], tt_dtype: Any) -> Any:
    """Keep the numpy type of each scalar type, by its name: types themselves hash slowly."""
    scalar = tt_dtype.scalar
    if scalar.name not in known:
        known[scalar.name] = convert(scalar)
    return known[scalar.name]


def _once_a_block(
    known: dict[Any, dict[str, Any]],
    init: Callable[..., None],
    self: Any,
    element_ty: Any,
    shape: Any,
) -> None:
    """Validate and name each block type once: a kernel makes the same few at every operation."""
    key = (element_ty.name, *shape)
    if any(type(size) is not int for size in key[1:]):
        init(self, element_ty, shape)
        return
    if key not in known:
        init(self, element_ty, shape)
        known[key] = dict(vars(self))
    vars(self).update(known[key], element_ty=element_ty)


def _in_debug_alone(check: Callable[..., None], self: Any, *operands: Any) -> None:
    """Skip a check that does its work in int64 and then asserts nothing unless debugging is on."""
    if self.builder.options.debug:
        check(self, *operands)
