"""What a kernel may be written in for a GPU, and Triton's interpreter alone does not take.

A loop's variable is a tensor, and so is an argument that is a boolean or a float; an argument has
the type that its annotation names. `and`, `or` and `not` take blocks. A constant may stand before a
tensor. A kernel may capture names of the function around it. The language may have any name, and so
may its functions.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder, interpreter_semantic
from triton.runtime.jit import KernelParam

from common.sandbox.interpreter.wrap import wrap

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
"""Of a product's inputs, as on NVIDIA's GPUs; the interpreter does not know the last two."""
COUNTED = "counted_range"
"""The name in a kernel's globals of what stands in the place of Python's `range`."""


def install() -> None:
    """Apply these patches; call this once, before any kernel runs."""
    wrap(interpreter, "_patch_lang", _under_any_name)
    wrap(interpreter, "_patch_lang_core", _counting)
    if VERSION < (3, 7):
        wrap(interpreter, "_patch_lang_tensor", _with_integers)
    transformer = interpreter.ASTTransformer
    wrap(transformer, "visit_Assign", _with_values)
    transformer.visit_For = _visit_for
    transformer.visit_BoolOp, transformer.visit_UnaryOp = _visit_bool_op, _visit_unary_op
    setattr(interpreter, COUNTED, counted_range)  # Triton copies its globals to the kernel's
    vars(interpreter_semantic).update(joined=joined, negated=negated)
    vars(interpreter_builder.options).update(allowed_dot_input_precisions=PRECISIONS)
    wrap(interpreter, "_implicit_cvt", _with_scalars)
    for name, method in list(vars(tl.constexpr).items()):
        if inspect.isfunction(method) and [*inspect.signature(method).parameters][1:] == ["other"]:
            wrap(tl.constexpr, name, _leaving_tensors)
    wrap(interpreter.GridExecutor, "__init__", _with_constants)
    wrap(interpreter.FunctionRewriter, "rewrite_ast", _with_names)


class Tensors(Sequence[Any]):
    """The numbers of a range, each as a tensor."""

    def __init__(self, numbers: range, dtype: tl.dtype) -> None:
        """Take the numbers, and the tensors' type."""
        self._numbers, self._dtype = numbers, dtype
        self._kind = interpreter._get_np_dtype(dtype)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        """Return the tensor at an index."""
        number = np.array([self._numbers[index]], dtype=self._kind)
        return tl.tensor(TensorHandle(number, self._dtype), self._dtype)


def counted_range(arg1: Any, arg2: Any = None, step: Any = None, **hints: Any) -> Tensors:
    """Return a loop's tensors, of its bounds' common type; the interpreter's loops take ints."""
    bounds = (0, arg1) if arg2 is None else (arg1, arg2)
    several = (*bounds, 1 if step is None else step)
    kinds = (interpreter_semantic.to_tensor(each).dtype for each in several)
    dtype = functools.reduce(interpreter_semantic.integer_promote_impl, kinds)
    return Tensors(range(*several), dtype)


def _counting(patch: Callable[..., None], lang: Any, scope: Any) -> None:
    patch(lang, scope)
    scope.set_attr(lang, "range", counted_range)


def _visit_for(self: ast.NodeTransformer, node: ast.For) -> ast.AST:
    match node.iter:
        case ast.Call(func=ast.Name(id="range") as name):
            name.id = COUNTED
    return self.generic_visit(node)


def joined(both: bool, *operands: Callable[[], Any]) -> Any:
    """Return the value of `and`, or of `or`, as Triton's compiler does.

    A constant that decides is the value; otherwise all tensors are computed, scalars too.
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
    """Put `joined` in the operator's place, for which Python would ask a block for its truth."""
    nothing = ast.arguments([], [], None, [], [], None, [])
    operands = [ast.Lambda(nothing, self.visit(each)) for each in node.values]
    return _call(joined, ast.Constant(isinstance(node.op, ast.And)), *operands)


def _visit_unary_op(self: ast.NodeTransformer, node: ast.UnaryOp) -> ast.AST:
    self.generic_visit(node)
    return _call(negated, node.operand) if isinstance(node.op, ast.Not) else node


def _call(function: Callable[..., Any], *arguments: ast.expr) -> ast.expr:
    """Return a call by way of a name that Triton gives each kernel."""
    semantic = ast.Name("interpreter_semantic", ast.Load())
    return ast.Call(ast.Attribute(semantic, function.__name__, ast.Load()), [*arguments], [])


def _with_values(visit: Callable[..., ast.AST], self: Any, node: ast.Assign) -> ast.AST:
    """Visit an assigned value too, which Triton's own transformer leaves out."""
    node.value = self.visit(node.value)
    return visit(self, node)


def _with_integers(patch: Callable[..., None], tensor: Any, scope: Any) -> None:
    """Let Python read a tensor's integer, as Triton 3.7 does.

    Triton 3.6 asks for the integer of an array with a dimension, which numpy 2.5 refuses.
    """
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))


def _under_any_name(patch: Callable[[Any], Any], fn: Any) -> Any:
    seen = any(each is tl or each is tl.core for each in fn.__globals__.values())
    return patch(fn if seen else SimpleNamespace(__globals__={**fn.__globals__, "tl": tl}))


def _with_scalars(convert: Callable[[Any], Any], arg: Any) -> Any:
    """Make a tensor of a boolean or of a float: the interpreter refuses one and keeps the other."""
    if isinstance(arg, bool | float):
        return _scalar(arg, tl.int1 if isinstance(arg, bool) else tl.float32)
    return convert(arg)


def _scalar(value: float, kind: tl.dtype) -> tl.tensor:
    """Return a number as a tensor of this type."""
    return tl.tensor(getattr(interpreter_builder, f"get_{kind.name}")(value), kind)


def annotated(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kernel's arguments, of which each annotated number is a tensor of its type.

    The interpreter itself takes the type from the value.
    """
    found = dict(arguments)
    for place, (name, parameter) in enumerate(inspect.signature(fn).parameters.items()):
        kind = KernelParam(place, parameter, False, False).annotation_type
        if kind and not kind.startswith("*") and isinstance(found[name], int | float):
            found[name] = _scalar(found[name], tl.str_to_ty(kind, None))
    return found


def _leaving_tensors(operator: Callable[..., Any], self: Any, other: Any) -> Any:
    """Leave a constant's operation on a tensor to the tensor: the interpreter makes a constant."""
    return NotImplemented if isinstance(other, tl.tensor) else operator(self, other)


def _with_constants(
    init: Callable[..., None], self: Any, fn: Any, arg_names: Sequence[str], *rest: Any
) -> None:
    """Know a constant whatever its annotation calls the language, as `triton.jit` does."""
    init(self, fn, arg_names, *rest)
    kinds = {name: str(each) for name, each in fn.__annotations__.items()}
    self.constexprs = [name for name in arg_names if "constexpr" in kinds.get(name, "")]


def _with_names(rewrite: Callable[[Any], Any], self: Any) -> Any:
    """Make captured names global: Triton compiles a kernel's source without what is around it."""
    fn = self.fn
    if names := {**_imported(fn), **inspect.getclosurevars(fn).nonlocals}:
        known = {**fn.__globals__, **names}
        known.pop(COUNTED, None)  # another one, while loops are sampled
        made = FunctionType(fn.__code__, known, fn.__name__, fn.__defaults__, fn.__closure__)
        self.fn = functools.update_wrapper(made, fn)
    rewritten = rewrite(self)
    rewritten.__annotations__ = fn.__annotations__  # Triton makes them their source's text
    return rewritten


def _imported(fn: FunctionType) -> dict[str, Any]:
    """Return the language's functions that a kernel calls by names of their own."""
    known = fn.__globals__
    return {
        name: functools.partial(known[name], _semantic=interpreter_semantic)
        for name in fn.__code__.co_names
        if tl.core.is_builtin(known.get(name))
    }
