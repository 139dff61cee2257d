"""A solution's contract: its file can be imported and defines the op's function and signature."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.autograd.function import _SingleLevelFunction

from common.errors import did_you_mean
from common.paths import PEERS
from common.sandbox.failures import describe
from common.solutions import source_of
from common.source import Place
from common.spec import Op
from common.verdicts import Failure
from common.wire import Reply


class Loaded(NamedTuple):
    """A solution's imported file."""

    op: Op[Any]
    module: ModuleType
    function: Callable[..., Any]
    """The function named after the op; it takes options by keyword."""
    parameters: Mapping[str, Parameter]
    """The parameters of the function by name."""
    prepare: Callable[..., Any] | None
    """The function `prepare` that a peer's file may have in place of the op's function.

    It takes the op's arguments and returns the call that is timed. Its own work, which the peer's
    library leaves to its user, such as stacking weights, is not timed."""

    def check_options(self, options: Iterable[str]) -> None:
        """Raise Failure, UNSUPPORTED, if the function does not take an option."""
        if not any(p.kind is p.VAR_KEYWORD for p in self.parameters.values()):
            for name in options:
                if name not in self.parameters:
                    raise Failure("UNSUPPORTED", f"does not take {name}")

    def call(self, inputs: Iterable[Any], options: Reply) -> Callable[[], Any]:
        """Return the call that is timed: the function with nothing around it but its arguments."""
        self.check_options(options)
        if self.prepare:
            prepared: Callable[[], Any] = self.prepare(*inputs, **options)
            return prepared
        return functools.partial(self.function, *inputs, **options)


def load(path: Path, op: Op[Any]) -> Loaded:
    """Import a solution's file, whose folder becomes the first on `sys.path`, for its helpers.

    Raise Failure, COMPILE_ERROR, if the file cannot be imported or lacks the function, or if the
    function's signature differs from the op's.
    """
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"solution_{path.stem}", source_of(path))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        place = Place(Path(error.filename or path).name, error.lineno or 0)
        reason = f"does not import: {error.msg}, {place}"
        raise Failure("COMPILE_ERROR", reason, places=(place,)) from None
    except (Exception, SystemExit) as error:
        text, places = describe(error)
        reason = f"does not import: {text}"
        raise Failure("COMPILE_ERROR", reason, places=places) from error
    prepare = getattr(module, "prepare", None) if path.is_relative_to(PEERS) else None
    function = getattr(module, op.name, None)
    if prepare:  # the op's function makes the call that `prepare` returns
        function = functools.wraps(prepare)(
            lambda *inputs, **options: prepare(*inputs, **options)()
        )
    if not callable(function):
        raise Failure(
            "COMPILE_ERROR",
            f"lacks a function named {op.name}{did_you_mean(op.name, vars(module))}",
        )
    taken = signature(function)
    _check_signature(taken, getattr(function, "keywords", {}), op)
    if _autograd_function(function):
        function = _by_keyword(function, taken)
    return Loaded(op, module, function, taken.parameters, prepare)


def _check_signature(taken: Signature, bound: Iterable[str], op: Op[Any]) -> None:
    """Raise Failure if the inputs, an option or its default differ from the op's.

    The options `bound` are those of a functools.partial, such as a block size.
    """
    name, interface = op.name, inspect.signature(op.interface.__call__)
    contract = list(interface.parameters.values())[1:]
    inputs = [p.name for p in contract if p.kind is p.POSITIONAL_OR_KEYWORD]
    options = {p.name: p.default for p in contract if p.kind is p.KEYWORD_ONLY}
    parameters = list(taken.parameters.values())
    positional = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
    if positional[: len(inputs)] != inputs:
        wanted = f"{name}({', '.join(inputs)}, ...)"
        reason = f"has another signature: {name}{taken} instead of {wanted}"
        raise Failure("COMPILE_ERROR", reason)
    for parameter in parameters[len(inputs) :]:
        option, reason = parameter.name, ""
        if option in options and repr(parameter.default) != repr(options[option]):
            reason = f"the default of {option} must be {options[option]!r}"
        elif option not in {*options, *bound} and parameter.kind is not parameter.VAR_KEYWORD:
            reason = f"{name} has no option {option!r}"
        if reason:
            raise Failure("COMPILE_ERROR", f"has another signature: {reason}")


# --- signatures -----------------------------------------------------------------------------------

# A module's signature is its forward's. The signature of `Function.apply` is that of `forward`
# without `ctx`. TorchScript functions and operators have a schema instead of a Python signature.


def signature(function: Callable[..., Any]) -> Signature:
    """Return the signature of a function, a module, an operator or a TorchScript function.

    Raise Failure, COMPILE_ERROR, if the callable has neither a signature nor a schema.
    """
    if isinstance(function, torch.nn.Module):
        # torch.compile's wrapper holds the module as _orig_mod
        return signature(getattr(function, "_orig_mod", function).forward)
    if schema := _schema(function):
        return Signature(list(_schema_parameters(schema)))
    if autograd_function := _autograd_function(function):
        parameters = list(inspect.signature(autograd_function.forward).parameters.values())
        if autograd_function.setup_context is _SingleLevelFunction.setup_context:
            del parameters[0]  # without a setup_context of its own, forward takes ctx first
        return Signature([p for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD])
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        reason = f"has no signature that Python can inspect: {type(function).__name__}"
        raise Failure("COMPILE_ERROR", reason) from error


def _by_keyword(apply: Callable[..., Any], taken: Signature) -> Callable[..., Any]:
    """Wrap the `apply` of an autograd function, so that it takes options by keyword."""
    defaults = [(parameter.name, parameter.default) for parameter in taken.parameters.values()]

    def by_keyword(*inputs: Any, **options: Any) -> Any:
        rest = [options.get(name, default) for name, default in defaults[len(inputs) :]]
        return apply(*inputs, *rest)

    return by_keyword


def _schema(function: Any) -> Any:
    """Return torch's schema of a TorchScript function or method or of an operator, else None."""
    function = getattr(function, "_opoverload", function)  # of torch.library.custom_op
    if isinstance(function, torch._ops.OpOverloadPacket):
        function = getattr(function, function.overloads()[0])
    if isinstance(function, torch._ops.OpOverload):
        return function._schema
    if isinstance(function, torch._C.ScriptFunction | torch._C.ScriptMethod):
        return function.schema
    return None


def _schema_parameters(schema: Any) -> Iterator[Parameter]:
    for argument in schema.arguments:
        if argument.name == "self":  # of a method
            continue
        kind = Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD
        default = argument.default_value if argument.has_default_value() else Parameter.empty
        yield Parameter(argument.name, kind, default=default)


def _autograd_function(function: Callable[..., Any]) -> type[torch.autograd.Function] | None:
    """Return the autograd function whose `apply` this is; None for any other callable."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        return owner
    return None
