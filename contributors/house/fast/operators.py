"""Make a launch one operator for torch.compile, torch.export, torch.func and forward-mode AD.

A launch by addresses (`launch.py`) reads them, and while torch traces a call there are none. An
operator is traced whole. Where the kernel is Triton's own, AOTAutograd takes the launch out of it
again, so that compiled code launches the kernel itself and pays for no dispatcher.
"""

import functools
import itertools

import torch
from torch._C import _are_functorch_transforms_active as transforms_are_active
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from triton.runtime.jit import JITFunction


def traced():
    """Return whether the call is one of those that need the operator."""
    return is_compiling() or transforms_are_active() or forward_ad._current_level >= 0


def linear(name, schema, tensors, map, check, kernel, instead):
    """Return a map that is linear in its first tensor as a function for such calls.

    Args:
        name: The operator's name; a second copy of its file gets another, `house::name_1`.
        schema: The types of its arguments. The last one, a bool, asks for the transposed map.
        tensors: The number of tensors, which come first.
        map: The map, Recorded; all arguments but the tensors are how.
        check: Raise ValueError for arguments that the map refuses.
        kernel: Its kernel.
        instead: The words that tell a caller of `torch.func.vmap` how to do without.
    """
    keep, transpose = _gradient(tensors)

    def run(*arguments):
        return map(arguments[tensors:], *arguments[:tensors])[0]

    def trace(kernel_of, *arguments):
        return map.at_once(arguments[tensors:], arguments[:tensors], kernel_of)[0]

    operator = _operator(name, schema, run, trace, check, kernel)
    operator.register_autograd(functools.partial(transpose, operator), setup_context=keep)
    refusal = f"{name} has no rule for torch.func.vmap: {instead}"
    transformed = _transformed(run, keep, transpose, refusal)
    return lambda *arguments: (operator if is_compiling() else transformed.apply)(*arguments)


def _operator(name, schema, run, trace, check, kernel):
    """Return the operator, which has no gradient yet."""
    operator = torch.library.custom_op(unused(name), run, mutates_args=(), schema=schema)

    @operator.register_fake
    def result(*arguments):
        check(*arguments)
        return torch.empty_like(arguments[0], memory_format=torch.contiguous_format)

    if isinstance(kernel, JITFunction):  # the interpreter's functions cannot be traced

        @functools.partial(operator.register_torch_dispatch, FunctionalTensorMode)
        def decompose(mode, operator, types, arguments, options):
            with mode:
                return trace(torch.library.wrap_triton, *arguments)

    return operator


def _gradient(tensors):
    """Return a function that keeps a call for backward, and backward by the transposed map."""

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:tensors])
        ctx.save_for_forward(*inputs[1:tensors])
        ctx.options = inputs[tensors:]

    def transpose(function, ctx, grad):
        *options, transposed = ctx.options
        grad = function(grad, *ctx.saved_tensors, *options, not transposed)
        return grad, *[None] * (tensors - 1 + len(ctx.options))

    return keep, transpose


def _transformed(run, keep, transpose, refusal):
    """Return the map as a Function for torch.func, which takes no operator with a gradient."""

    class Transformed(torch.autograd.Function):
        forward, setup_context = staticmethod(run), staticmethod(keep)

        @staticmethod
        def backward(ctx, grad):
            return transpose(Transformed.apply, ctx, grad)

        @staticmethod
        def jvp(ctx, tangent, *_):
            return Transformed.apply(tangent, *ctx.saved_tensors, *ctx.options)

        @staticmethod
        def vmap(info, dims, *arguments):
            raise NotImplementedError(refusal)

    return Transformed


def refuse_second_derivative(name):
    """Raise an error in a backward under `create_graph=True`, which enables gradients there.

    The gradients depend on what forward saved, and autograd sees only launches. The error node of
    torch's `once_differentiable` is silent where the upstream gradient is constant, as a sum's is,
    and where it lies on no path to the inputs that `torch.autograd.grad` is given.
    """
    if torch.is_grad_enabled():
        raise NotImplementedError(f"{name} has no second derivative: leave out create_graph")


def unused(name):
    """Return the operator's full name, which no other copy of its file has in this process."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    return "house::" + next(each for each in names if not hasattr(torch.ops.house, each))
