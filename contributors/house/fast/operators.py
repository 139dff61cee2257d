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


def version(tensors):
    """Return a number that grows as tensors are modified; autograd's check takes 3 us of 40."""
    found = 0
    for each in tensors:
        if each is not None:
            found += each._version
    return found


def transposed(how):
    """Return the words that ask for the transposed map."""
    return *how[:-1], not how[-1]


def linear(map, fixed, operator=None, turn_gradients=None):
    """Return `turn(how, *tensors)`: a map's results, with an autograd node where one is due.

    map: A Recorded map; how's last word asks for the transposed one. fixed: how many tensors, the
    last ones, get no gradient; it is linear in the others, its inputs. operator: Such a function
    for torch.compile. turn_gradients: Such a function for the gradients, where the map is in place
    and returns nothing.
    """

    def at_once(how, *tensors):
        return map(how, *tensors) or tensors[:-fixed]

    class Linear(torch.autograd.Function):
        forward = staticmethod(at_once)

        @staticmethod
        def setup_context(ctx, arguments, outputs):
            ctx.how, ctx.fixed, ctx.traced = arguments[0], arguments[-fixed:], traced()
            ctx.version = version(ctx.fixed)
            if ctx.traced:  # torch knows what becomes of a transform's tensors at its end
                ctx.save_for_backward(*ctx.fixed)
                ctx.save_for_forward(*ctx.fixed)
            if turn_gradients:
                ctx.mark_dirty(*arguments[1:-fixed])

        @staticmethod
        def backward(ctx, *grads):
            if version(ctx.fixed) != ctx.version:
                raise RuntimeError("freqs, or a tensor of positions, was modified before backward")
            how, tensors, turn_back = transposed(ctx.how), ctx.fixed, turn_gradients or turn
            if ctx.traced:
                tensors, turn_back = ctx.saved_tensors, by_functorch
            return None, *turn_back(how, *grads, *tensors), *[None] * fixed

        @staticmethod
        def jvp(ctx, _, *tangents):
            return by_functorch(ctx.how, *tangents[:-fixed], *ctx.saved_tensors)

        @staticmethod
        def vmap(*_):
            raise NotImplementedError("torch.func.vmap of rope: t has a dimension for batches")

    def by_functorch(how, *tensors):
        inputs, others = tensors[:-fixed], tensors[-fixed:]
        return tuple(Linear.apply(how, each, *others)[0] for each in inputs)

    # Function.apply less its preparation for torch.func
    apply = super(torch.autograd.Function, Linear).apply

    def turn(how, *tensors):
        if traced():
            return (operator if is_compiling() else by_functorch)(how, *tensors)
        if torch.is_grad_enabled():
            for each in tensors[:-fixed]:
                if each.requires_grad:
                    return apply(how, *tensors)
        return at_once(how, *tensors)

    return turn


def traceable(name, schema, map, check, kernel):
    """Return `turn(how, *tensors)` of a Recorded map, as `linear` has it, for torch.compile.

    name: the operator's; schema: the types of its fixed tensors, which may be None, and of how;
    check: raise ValueError for arguments that the map refuses; kernel: the map's.
    """
    fixed = schema.count("Tensor?")

    def run(inputs, *arguments, map=map):
        return [*map(arguments[fixed:], *inputs, *arguments[:fixed])]

    def keep(ctx, inputs, output):
        _, *arguments = inputs
        ctx.save_for_backward(*arguments[:fixed])
        ctx.how = arguments[fixed:]

    def transpose(ctx, grads):
        grads = operator(grads, *ctx.saved_tensors, *transposed(ctx.how))
        return grads, *[None] * (fixed + len(ctx.how))

    schema = f"(Tensor[] inputs, {schema}) -> Tensor[]"
    operator = torch.library.custom_op(unused(name), run, mutates_args=(), schema=schema)
    operator.register_autograd(transpose, setup_context=keep)

    @operator.register_fake
    def results(inputs, *arguments):
        for each in inputs:
            check(each, *arguments)
        return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in inputs]

    if isinstance(kernel, JITFunction):  # the interpreter's functions cannot be traced

        @functools.partial(operator.register_torch_dispatch, FunctionalTensorMode)
        def decompose(mode, operator, types, arguments, options):
            with mode:
                return run(*arguments, map=captured)

        def captured(how, *tensors):
            return map.at_once(how, tensors, torch.library.wrap_triton)

    return lambda how, *tensors: tuple(operator([*tensors[:-fixed]], *tensors[-fixed:], *how))


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
