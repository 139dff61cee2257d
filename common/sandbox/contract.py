"""The contract of a solution: its file imports, defines the op's function and has its signature."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from inspect import Parameter, Signature
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction

from common.paths import PEERS
from common.sandbox.failures import Refused, describe
from common.solutions import source
from common.spec import Op
from common.wire import Reply


def load(path: Path, op: Op[Any]) -> Callable[..., Any]:
    """Import a solution's file and return its function named after the op.

    The file's folder becomes the first on `sys.path`, so that its helpers can be imported.

    Raises:
        Refused: COMPILE_ERROR, where the file does not import, lacks the function, or the function
            has another signature than the op's interface.
    """
    sys.path.insert(0, str(path.parent))
    loader = None if path.exists() else _Made(_module_name(path), str(path))
    spec = importlib.util.spec_from_file_location(_module_name(path), path, loader=loader)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"line {error.lineno} of {Path(error.filename or path).name}"
        raise Refused("COMPILE_ERROR", f"does not import: {error.msg}, {where}") from None
    except (Exception, SystemExit) as error:
        raise Refused("COMPILE_ERROR", f"does not import: {describe(error)}") from error
    function = getattr(module, op.name, None)
    if not callable(function):
        raise Refused("COMPILE_ERROR", f"lacks a function named {op.name}")
    _check_signature(function, op.interface, op.name)
    return by_keyword(function)


class _Made(SourceFileLoader):
    """The loader of a peer's solution that has no file; see `solutions.source`."""

    def get_data(self, path: str) -> bytes:
        """Return the source."""
        return source(Path(path)).encode()


def loaded(path: Path) -> ModuleType:
    """Return the module that `load` made of the file."""
    return sys.modules[_module_name(path)]


def _module_name(path: Path) -> str:
    return f"solution_{path.stem}"


def _check_signature(function: Callable[..., Any], interface: type, name: str) -> None:
    """Raise Refused where the inputs, or an option and its default, differ from the interface's."""
    contract = list(inspect.signature(interface.__call__).parameters.values())[1:]
    inputs = [p.name for p in contract if p.kind is p.POSITIONAL_OR_KEYWORD]
    options = {p.name: p.default for p in contract if p.kind is p.KEYWORD_ONLY}
    found = signature(function)
    theirs = list(found.parameters.values())
    positional = [p.name for p in theirs if p.kind <= p.POSITIONAL_OR_KEYWORD]
    if positional[: len(inputs)] != inputs:
        wanted = f"{name}({', '.join(inputs)}, ...)"
        reason = f"has another signature: {name}{found} instead of {wanted}"
        raise Refused("COMPILE_ERROR", reason)
    bound = getattr(function, "keywords", {})  # a partial's own, such as a size of blocks
    for parameter in theirs[len(inputs) :]:
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.name not in options and parameter.name in bound:
            continue
        if parameter.name not in options:
            reason = f"has another signature: {name} has no option {parameter.name!r}"
            raise Refused("COMPILE_ERROR", reason)
        if repr(parameter.default) != repr(options[parameter.name]):
            reason = f"has another signature: {parameter.name} must be {options[parameter.name]!r}"
            raise Refused("COMPILE_ERROR", f"{reason} unless given")


def given(op: Op[Any], arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the inputs of a call in their order, and the options that are not at their default."""
    known = inspect.signature(op.interface.__call__).parameters
    inputs = [each for name, each in arguments.items() if known[name].default is Parameter.empty]
    options = {
        name: each
        for name, each in arguments.items()
        if known[name].default is not Parameter.empty
        and (isinstance(each, torch.Tensor) or each != known[name].default)
    }
    return inputs, options


def named_options(function: Callable[..., Any], options: Reply) -> Reply:
    """Return the options, each of which the function takes.

    Raises:
        Refused: UNSUPPORTED, where the function does not name an option that is given.
    """
    parameters = signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return options
    for name in options:
        if name not in parameters:
            raise Refused("UNSUPPORTED", f"does not take {name}")
    return options


def preparation(path: Path) -> Callable[..., Any] | None:
    """Return the function `prepare` of a peer's loaded file; None for a contributor's.

    `prepare` takes the op's arguments and returns the call that is timed. It does untimed what the
    peer's library has its user do once, such as sorting tokens by expert. A contributor's solution
    has no such part: all that it does is timed.
    """
    if not path.is_relative_to(PEERS):
        return None
    return getattr(loaded(path), "prepare", None)


# --- signatures -----------------------------------------------------------------------------------

# A module has the signature of its forward, `Function.apply` that of the function's forward without
# `ctx`; TorchScript and operators have a schema in place of Python's signature.


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
    defaults = [(parameter.name, parameter.default) for parameter in known.parameters.values()]

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
