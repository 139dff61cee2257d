"""Operators: what autograd, torch.compile, torch.func and counters of FLOPs see of a call.

While torch traces a call, there are no addresses to launch with (`launch.py`). An operator is
traced whole. Where rope's kernel is Triton's own, AOTAutograd takes the launch out of it again, so
that compiled code launches the kernel itself and pays for no dispatcher.
"""

import functools
import itertools
import warnings

import torch
import triton
from torch._C import _are_functorch_transforms_active as transforms_are_active
from torch._functorch.utils import enable_single_level_autograd_function
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import _FlopCounterMode, register_flop_formula
from triton.runtime.jit import JITFunction


def traced():
    """Return whether the call is one of those that need the operator."""
    if is_compiling() or transforms_are_active() or forward_ad._current_level >= 0:
        return True
    modes = torch._C._len_torch_dispatch_stack() and _get_current_dispatch_mode_stack()
    seeing = FakeTensorMode, _FlopCounterMode  # other modes see the call's allocations
    return bool(modes) and any(isinstance(mode, seeing) for mode in modes)


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
            transformed = transforms_are_active() or forward_ad._current_level >= 0
            by_operator = is_compiling() or not transformed
            return (operator if by_operator else by_functorch)(how, *tensors)
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

    def run(inputs, *arguments):
        return [*map(arguments[fixed:], *inputs, *arguments[:fixed])]

    class Traced(torch.autograd.Function):
        @staticmethod
        def forward(how, *tensors):
            return tuple(lowered(operator, launched, arguments_of(how, *tensors)))

        @staticmethod
        def setup_context(ctx, inputs, outputs):
            ctx.how, *tensors = inputs
            ctx.save_for_backward(*tensors[-fixed:])

        @staticmethod
        def backward(ctx, *grads):
            how = transposed(ctx.how)
            return None, *turn(how, *grads, *ctx.saved_tensors), *[None] * fixed

    apply = applied(Traced)

    def arguments_of(how, *tensors):
        return [*tensors[:-fixed]], *tensors[-fixed:], *how

    def operate(inputs, *arguments):
        if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
            return [*apply(arguments[fixed:], *inputs, *arguments[:fixed])]
        return launched(inputs, *arguments)

    def turn(how, *tensors):
        return tuple(operator(*arguments_of(how, *tensors)))

    schema = f"(Tensor[] inputs, {schema}) -> Tensor[]"
    operator = define(name, schema, operate)
    launched = torch.library.custom_op(
        unused(f"{name}_launch"), run, mutates_args=(), schema=schema
    )

    @launched.register_fake
    def results(inputs, *arguments):
        for each in inputs:
            check(each, *arguments)
        return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in inputs]

    if isinstance(kernel, JITFunction):  # the interpreter's functions cannot be traced

        @functools.partial(launched.register_torch_dispatch, FunctionalTensorMode)
        def decompose(mode, operator, types, arguments, options):
            inputs, *rest = arguments
            with mode:
                return [*map.function(launch, *rest[fixed:], *inputs, *rest[:fixed])]

        def launch(kernel, grid, *arguments, launch_pdl=False, PDL=False, **options):
            # torch.compile knows no launch that begins before another one's end
            torch.library.wrap_triton(kernel)[grid](*arguments, PDL=False, **options)

    return turn


def applied(function):
    """Return the `apply` of an autograd Function for an operator, which torch.func calls."""
    apply = super(torch.autograd.Function, function).apply

    def call(*arguments):
        with enable_single_level_autograd_function():
            return apply(*arguments)

    return call


def lowered(operator, launched, arguments, of_launched=None):
    """Return what the operator gives on the next level of torch.func, or, on the last, a launch.

    of_launched: The arguments of the launch, if they are others.
    """
    if not transforms_are_active():
        return launched(*(of_launched or arguments))
    # a Function's forward is without gradients, which the next level may want
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        return operator(*arguments)


_LIBRARY = torch.library.Library("house", "FRAGMENT")


def define(name, schema, run, fake=None, flops=None):
    """Return a new operator, of a name that no other copy of this file has in this process.

    A call takes half the host time of one by `torch.library.custom_op`.

    Args:
        name: Its name, unless that is taken.
        schema: `(Tensor x, bool keep) -> Tensor`, for example.
        run: The function; without `fake`, torch traces what it calls.
        fake: The same for tensors without memory.
        flops: The FLOPs of a call, a function of the shapes in the place of tensors.
    """
    _, name = unused(name).split("::")
    _LIBRARY.define(name + schema)
    kind = "Explicit" if fake else "Implicit"
    _LIBRARY.impl(name, run, f"Composite{kind}Autograd")
    operator = getattr(torch.ops.house, name)
    if fake:
        torch.library.register_fake(f"house::{name}", fake, lib=_LIBRARY)
    if flops:
        register_flop_formula(operator)(flops)
    return operator.default


def unused(name):
    """Return the operator's full name, which no other copy of its file has in this process."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    return "house::" + next(each for each in names if not hasattr(torch.ops.house, each))


class Reverse(torch.autograd.Function):
    """A function of `(op, ...)` for reverse mode alone; torch.func.vmap calls it in a loop."""

    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx, *tangents):
        """Refuse forward-mode AD."""
        raise NotImplementedError(f"{ctx.op} has no forward-mode derivative (torch.func.jvp)")


@functools.cache
def missing(dtype):
    """Return why kernels cannot compute with a CPU's tensors of a dtype, or None if they can."""
    if triton.knobs.runtime.interpret:
        wrong = dtype == torch.bfloat16 and not _adds_bfloat16()
        return "Triton's interpreter takes the bits of bfloat16 for integers" if wrong else None
    try:
        triton.runtime.driver.active.get_current_target()
    except RuntimeError:
        return "Triton has no driver for this machine"


@functools.cache
def warn_once(warning):
    """Warn, whatever Python's filter of warnings has seen."""
    warnings.warn(warning, stacklevel=2)


def _adds_bfloat16():
    """Return whether somebody has mended the interpreter, as the house's harness does."""
    from triton.runtime import interpreter

    bits = interpreter.np.array([0x3F80], interpreter.np.uint16)
    one = interpreter.TensorHandle(bits, triton.language.bfloat16)
    return interpreter.interpreter_builder.create_fadd(one, one).data[0] == 0x4000
