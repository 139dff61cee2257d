"""Linear maps for autograd, torch.compile, torch.export, torch.func and forward-mode AD.

While torch traces a call, there are no addresses to launch with (`launch.py`). An operator is
traced whole. Where the kernel is Triton's own, AOTAutograd takes the launch out of it again, so
that compiled code launches the kernel itself and pays for no dispatcher.
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


def version(call):
    """Return a number that grows as a call's tensors are modified; autograd's takes 3 us of 40."""
    found = 0
    for each in call[1:]:
        if each is not None:
            found += each._version
    return found


def differentiable(map, turn_gradients=None):
    """Return `turn(call, *inputs)`: the results, with an autograd node where a gradient is due.

    map: A Recorded map, linear in its inputs, `map(how, *inputs, *tensors)`. A call is how, whose
    last word asks for the transposed map, and the tensors, which get no gradient. turn_gradients:
    Such a function for the gradients, where the map is in place and returns nothing.
    """

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, call, *inputs):
            ctx.call, ctx.version = call, version(call)
            if turn_gradients:
                ctx.mark_dirty(*inputs)
            return map(call[0], *inputs, *call[1:]) or inputs

        @staticmethod
        def backward(ctx, *grads):
            if version(ctx.call) != ctx.version:
                raise RuntimeError("freqs, or a tensor of positions, was modified before backward")
            (*how, transposed), *tensors = ctx.call
            return None, *(turn_gradients or turn)(((*how, not transposed), *tensors), *grads)

    # Function.apply less its preparation for torch.func, which never comes here
    apply = super(torch.autograd.Function, Linear).apply

    def turn(call, *inputs):
        if torch.is_grad_enabled():
            for each in inputs:
                if each.requires_grad:
                    return apply(call, *inputs)
        return map(call[0], *inputs, *call[1:]) or inputs

    return turn


def traceable(name, schema, map, check, kernel, instead):
    """Return a Recorded map, linear in its first tensor, as a function for `traced` calls.

    name: the operator's; schema: its arguments' types, tensors first, then how; check: raise
    ValueError for arguments that the map refuses; kernel: the map's; instead: the words that tell a
    caller of `torch.func.vmap` how to do without.
    """
    tensors = schema.count("Tensor") - 1  # and the result

    def run(*arguments):
        return map(arguments[tensors:], *arguments[:tensors])[0]

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:tensors])
        ctx.save_for_forward(*inputs[1:tensors])
        ctx.how = inputs[tensors:]

    def transpose(function, ctx, grad):
        *how, transposed = ctx.how
        grad = function(grad, *ctx.saved_tensors, *how, not transposed)
        return grad, *[None] * (tensors + len(how))

    class Transformed(torch.autograd.Function):  # torch.func takes no operator with a gradient
        forward, setup_context = staticmethod(run), staticmethod(keep)

        @staticmethod
        def backward(ctx, grad):
            return transpose(Transformed.apply, ctx, grad)

        @staticmethod
        def jvp(ctx, tangent, *_):
            return Transformed.apply(tangent, *ctx.saved_tensors, *ctx.how)

        @staticmethod
        def vmap(info, dims, *arguments):
            raise NotImplementedError(f"{name} has no rule for torch.func.vmap: {instead}")

    operator = torch.library.custom_op(unused(name), run, mutates_args=(), schema=schema)
    operator.register_autograd(functools.partial(transpose, operator), setup_context=keep)

    @operator.register_fake
    def result(*arguments):
        check(*arguments)
        return torch.empty_like(arguments[0], memory_format=torch.contiguous_format)

    if isinstance(kernel, JITFunction):  # the interpreter's functions cannot be traced

        @functools.partial(operator.register_torch_dispatch, FunctionalTensorMode)
        def decompose(mode, operator, types, arguments, options):
            how, given = arguments[tensors:], arguments[:tensors]
            with mode:
                return map.at_once(how, given, torch.library.wrap_triton)[0]

    return lambda *arguments: (operator if is_compiling() else Transformed.apply)(*arguments)


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
