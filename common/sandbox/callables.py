"""The signatures of the callables that a solution may bind to its op's name, and calls by keyword.

A module has the signature of its forward, `Function.apply` that of the function's forward without
`ctx`; TorchScript and operators have a schema in place of Python's signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction

from common.sandbox.failures import Refused


def signature(function: Callable[..., Any]) -> Signature:
    """Return the signature of a function, a module, an operator or a TorchScript function.

    Raises:
        Refused: COMPILE_ERROR, where the callable has neither a signature nor a schema.
    """
    if isinstance(function, torch.nn.Module):
        return signature(getattr(function, "_orig_mod", function).forward)  # under torch.compile
    if schema := _schema(function):
        return Signature(list(_parameters(schema)))
    if applied := _applied(function):
        return Signature(list(_inputs(applied)))
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        reason = f"has no signature that Python can tell: {type(function).__name__}"
        raise Refused("COMPILE_ERROR", reason) from error


def by_keyword(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callable that takes its options by keyword, as `Function.apply` does not."""
    if not _applied(function):
        return function
    known = signature(function)
    defaults = [(each.name, each.default) for each in known.parameters.values()]

    def apply(*inputs: Any, **options: Any) -> Any:
        rest = defaults[len(inputs) :]
        return function(*inputs, *[options.get(name, default) for name, default in rest])

    apply.__signature__ = known  # type: ignore[attr-defined]
    return apply


def _schema(function: Any) -> Any:
    """Return torch's schema of a TorchScript function or method, or of an operator, if any."""
    function = getattr(function, "_opoverload", function)  # of torch.library.custom_op
    if isinstance(function, torch._ops.OpOverloadPacket):
        function = getattr(function, function.overloads()[0])
    if isinstance(function, torch._ops.OpOverload):
        return function._schema
    if isinstance(function, torch._C.ScriptFunction | torch._C.ScriptMethod):
        return function.schema
    return None


def _parameters(schema: Any) -> Iterator[Parameter]:
    for argument in schema.arguments:
        if argument.name == "self":  # of a method
            continue
        kind = Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD
        has, default = argument.has_default_value(), argument.default_value
        yield Parameter(argument.name, kind, default=default if has else Parameter.empty)


def _applied(function: Callable[..., Any]) -> type[torch.autograd.Function] | None:
    """Return the autograd function of which this is `apply`, if it is one's."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        return owner
    return None


def _inputs(applied: type[torch.autograd.Function]) -> list[Parameter]:
    """Return what `apply` takes: by position alone, and without `ctx`."""
    parameters = list(inspect.signature(applied.forward).parameters.values())
    alone = applied.setup_context is not _SingleLevelFunction.setup_context
    given = parameters if alone else parameters[1:]
    return [each for each in given if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
