"""Language features that Triton's compiler accepts and its interpreter does not.

A loop variable is a tensor, as is a boolean or float argument. An annotated argument has the type
in its annotation. `and`, `or` and `not` accept blocks. A constexpr may be the left operand of an
operation on a tensor. A kernel may capture names of the enclosing function.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import interpreter_builder, interpreter_semantic
from triton.runtime.jit import KernelParam

from common.sandbox.interpreter.together import Rows


def running(numbers: range) -> Iterable[int]:
    """Return the numbers of a loop for which it runs: all, unless work is counted by a sample."""
    return numbers


def counted_range(
    arg1: Any, arg2: Any = None, step: Any = None, static: bool = False, **hints: Any
) -> Iterable[Any]:
    """Return a loop's tensors in the common type of its bounds, or a static loop's numbers.

    Programs that run at once may begin at different numbers, if they make as many iterations.
    """
    bounds = (0, arg1) if arg2 is None else (arg1, arg2)
    range_args = (*bounds, 1 if step is None else step)
    if static:
        return running(range(*range_args))
    first, end, stride = map(interpreter_semantic.to_tensor, range_args)
    dtypes = (bound.dtype for bound in (first, end, stride))
    dtype = functools.reduce(interpreter_semantic.integer_promote_impl, dtypes)
    if not isinstance(first.handle, Rows):
        return (_scalar(number, dtype) for number in running(range(*range_args)))
    by = int(stride)
    length = (end - first + (by - (1 if by > 0 else -1))) // by
    numbers = running(range(length * (length > 0)))
    return ((first + number * by).to(dtype) for number in numbers)


def _visit_for(self: ast.NodeTransformer, node: ast.For) -> ast.AST:
    match node.iter:
        case ast.Call(func=ast.Name(id="range")) as call:
            call.func = _helper(counted_range)
    return self.generic_visit(node)


def joined(both: bool, *operands: Callable[[], Any]) -> Any:
    """Return the value of `and` or `or` as in Triton's compiler.

    A constant that decides the result is the value, as in `False and x`. Otherwise the tensors are
    combined elementwise, scalars too. `both` is whether the operator is `and`; an operand is
    computed by its call.
    """
    tensors: list[Any] = []
    for operand in operands:
        value = operand()
        if isinstance(value, tl.tensor):
            tensors.append(value)
        elif bool(value) is not both:
            return value
    if len(tensors) < 2:
        return tensors[0] if tensors else value
    join = operator.and_ if both else operator.or_
    return functools.reduce(join, (tensor.to(tl.int1) for tensor in tensors))


def negated(operand: Any) -> Any:
    """Return the value of `not`."""
    return operand.to(tl.int1) == 0 if isinstance(operand, tl.tensor) else not operand


def _visit_bool_op(self: ast.NodeTransformer, node: ast.BoolOp) -> ast.AST:
    """Replace the operator by a call of `joined`; Python would evaluate the block's truth value."""
    no_arguments = ast.arguments([], [], None, [], [], None, [])
    operands = [ast.Lambda(no_arguments, self.visit(value)) for value in node.values]
    both = ast.Constant(isinstance(node.op, ast.And))
    return ast.Call(_helper(joined), [both, *operands], [])


def _visit_unary_op(self: ast.NodeTransformer, node: ast.UnaryOp) -> ast.AST:
    self.generic_visit(node)
    return ast.Call(_helper(negated), [node.operand], []) if isinstance(node.op, ast.Not) else node


def _helper(function: Callable[..., Any]) -> ast.expr:
    """Return a function by its name in `interpreter_semantic`, which Triton gives to kernels."""
    semantic = ast.Name("interpreter_semantic", ast.Load())
    return ast.Attribute(semantic, function.__name__, ast.Load())


def _visit_assign(visit: Callable[..., ast.AST], self: Any, node: ast.Assign) -> ast.AST:
    """Visit the assigned value too, which Triton's own transformer omits."""
    node.value = self.visit(node.value)
    return visit(self, node)


def _convert_scalar(convert: Callable[[Any], Any], arg: Any) -> Any:
    """Convert booleans and floats to tensors: the interpreter rejects booleans and keeps floats."""
    if isinstance(arg, bool | float):
        return _scalar(arg, tl.int1 if isinstance(arg, bool) else tl.float32)
    return convert(arg)


def _scalar(value: float, dtype: tl.dtype) -> tl.tensor:
    """Return a number as a tensor of this type."""
    return tl.tensor(getattr(interpreter_builder, f"get_{dtype.name}")(value), dtype)


def annotated(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kernel's arguments, with annotated numbers as tensors of the annotated type.

    The interpreter itself infers the type from the value.
    """
    converted = dict(arguments)
    for index, (name, parameter) in enumerate(inspect.signature(fn).parameters.items()):
        type_name = KernelParam(index, parameter, False, False).annotation_type
        if type_name and not type_name.startswith("*") and isinstance(arguments[name], int | float):
            converted[name] = _scalar(arguments[name], tl.str_to_ty(type_name, None))
    return converted


def _defer_to_tensor(operator: Callable[..., Any], self: Any, other: Any) -> Any:
    """Leave a constexpr's operation on a tensor to the tensor; Triton would return a constexpr."""
    return NotImplemented if isinstance(other, tl.tensor) else operator(self, other)


def _find_constexprs(
    init: Callable[..., None], self: Any, fn: Any, arg_names: Sequence[str], *rest: Any
) -> None:
    """Recognize a constexpr under any module name, such as `language.constexpr`, as Triton does."""
    init(self, fn, arg_names, *rest)
    annotations = {name: str(annotation) for name, annotation in fn.__annotations__.items()}
    self.constexprs = [name for name in arg_names if "constexpr" in annotations.get(name, "")]


def _make_names_global(rewrite: Callable[[Any], Any], self: Any) -> Any:
    """Make captured names global, since Triton compiles a kernel without its enclosing function."""
    fn = self.fn
    if captured := inspect.getclosurevars(fn).nonlocals:
        names = {**fn.__globals__, **captured}
        copied = FunctionType(fn.__code__, names, fn.__name__, fn.__defaults__, fn.__closure__)
        self.fn = functools.update_wrapper(copied, fn)
    rewritten = rewrite(self)
    rewritten.__annotations__ = fn.__annotations__  # Triton replaces them by their source text
    return rewritten


WRAPPED: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (interpreter, "_implicit_cvt", _convert_scalar),
    (interpreter.GridExecutor, "__init__", _find_constexprs),
    (interpreter.ASTTransformer, "visit_Assign", _visit_assign),
    (interpreter.FunctionRewriter, "rewrite_ast", _make_names_global),
    *((tl.constexpr, name, _defer_to_tensor) for name, method in vars(tl.constexpr).items()
      if inspect.isfunction(method) and [*inspect.signature(method).parameters][1:] == ["other"]),
)  # fmt: skip
"""Functions and their wrappers, which get the original function first."""
REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (interpreter.ASTTransformer, "visit_For", _visit_for),
    (interpreter.ASTTransformer, "visit_BoolOp", _visit_bool_op),
    (interpreter.ASTTransformer, "visit_UnaryOp", _visit_unary_op),
    *((interpreter_semantic, each.__name__, each) for each in (counted_range, joined, negated)),
    *((each, "range", counted_range) for each in (tl, tl.core)),
    *((each, "static_range", functools.partial(counted_range, static=True))
      for each in (tl, tl.core)),
    # an operation, as in Triton's compiler, which several programs can do at once
    (tl.tensor, "T", property(lambda self: interpreter_semantic.permute(self, (1, 0)))),
    # Triton 3.6 calls `int` on an array of one dimension, which numpy 2.5 refuses
    (tl.tensor, "__index__", lambda self: int(self.handle.data.squeeze())),
    # those of NVIDIA's GPUs; the interpreter lacks the last two
    (interpreter_builder, "options", dataclasses.replace(
        interpreter_builder.options,
        allowed_dot_input_precisions=("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"),
    )),
)  # fmt: skip
"""Attributes and their values."""
