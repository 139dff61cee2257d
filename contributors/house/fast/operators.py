"""Operators: what autograd, torch.compile, torch.func and counters of FLOPs see of a call.

While torch traces a call, there are no addresses to launch with (`launch.py`): it goes through
torch's dispatcher, one level of torch.func after the other. Otherwise it launches at once, since
the dispatcher takes longer than the rest. Autograd has the same node for both.
"""

import functools
import warnings

import torch
import triton
from torch._C import _are_functorch_transforms_active as transforms_are_active
from torch._C import _len_torch_dispatch_stack as count_of_modes
from torch._C._functorch import unwrap_if_dead
from torch._functorch.utils import enable_single_level_autograd_function
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import _FlopCounterMode, register_flop_formula


def traced():
    """Return whether the call is one of those that need the operator."""
    if is_compiling() or transforms_are_active() or forward_ad._current_level >= 0:
        return True
    if not count_of_modes():
        return False
    seeing = FakeTensorMode, _FlopCounterMode  # other modes see the call's allocations
    return any(isinstance(mode, seeing) for mode in _get_current_dispatch_mode_stack())


class Operator:
    """A function of a tuple of other values and of tensors, which may be None.

    A subclass that has derivatives says so by `kept`, `gradients` and `tangents`.
    """

    def __init__(self, name, schema, run, fake, flops=None, suffix=""):
        """Take what a call does.

        Args:
            name: The name, for messages; with the suffix the operator's, unless that is taken.
            schema: `(Tensor x, Tensor? y, bool keep) -> (Tensor, Tensor)`; two results or more.
            run: `run(how, *tensors)` returns the results, or None for some. What follows those of
                the schema is for `kept` alone.
            fake: The same for tensors without memory.
            flops: The FLOPs of a call, a function of the shapes in the place of tensors.
        """
        self.name, self.run = name, run
        self._tensors = schema.split("->")[0].count("Tensor")
        run, fake = (functools.partial(self._operate, each) for each in (run, fake))
        self._operator = define(name + suffix, schema, run, fake)
        differentiate = functools.partial(self._operate, self._differentiate)
        _LIBRARY.impl(self._operator._opname, differentiate, "Autograd")
        if flops:
            register_flop_formula(self._operator.overloadpacket)(flops)

    def __call__(self, how, *tensors):
        """Return the results, for autograd too."""
        if traced():
            return self._operator(*tensors, *how)
        return self.call(self.run, how, *tensors)

    def kept(self, tensors, outputs):
        """Return the tensors that derivatives take."""
        return ()

    def gradients(self, how, needed, grads, kept):
        """Return the gradients of the first tensors; those after them have none.

        needed: whether each tensor's is; grads: those of the results, None for zero.
        """
        raise NotImplementedError(f"{self.name} has no second derivative: leave out create_graph")

    def tangents(self, how, tangents, kept):
        """Return the results' tangents for those of the tensors; None is zero."""
        raise NotImplementedError(f"{self.name} has no forward-mode derivative (torch.func.jvp)")

    def call(self, run, how, *tensors):
        """Return the results of `run`, maybe in place, with an autograd node where one is due."""
        due = forward_ad._current_level >= 0
        if torch.is_grad_enabled():
            for each in tensors:
                if each is not None and each.requires_grad:
                    due = True
                    break
        return apply(self, run, how, *tensors) if due else run(how, *tensors)

    def _differentiate(self, how, *tensors):
        """Return the results on one level of torch.func."""
        with enable_single_level_autograd_function():
            return self.call(self._below, how, *tensors)

    def _below(self, how, *tensors):
        """Call the operator on the next level, or, if there is none, without autograd."""
        # a Function's forward is without gradients, which the next level may want
        with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
            return self._operator(*tensors, *how)

    def _operate(self, run, *arguments):
        """Return as many tensors as the schema has; for None one of a dtype without derivatives."""
        tensors, how = arguments[: self._tensors], arguments[self._tensors :]
        found, count = run(how, *tensors), len(self._operator._schema.returns)
        nothing = functools.partial(tensors[0].new_empty, 0, dtype=torch.bool)
        return tuple(nothing() if each is None else each for each in (*found, None)[:count])


class Node(torch.autograd.Function):
    """A call of an operator by `run(how, *tensors)`."""

    @staticmethod
    def forward(ctx, operator, run, how, *tensors):
        """Return the results, and keep what derivatives take."""
        outputs = run(how, *tensors)
        ctx.call = operator, run, how
        kept = operator.kept(tensors, outputs)
        ctx.save_for_backward(*kept)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*kept)
            ctx.zeros = [
                torch.zeros_like(each) if each is not None and each.is_floating_point() else None
                for each in outputs
            ]
        if outputs[0] is tensors[0]:
            ctx.mark_dirty(tensors[0])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx, *grads):
        """Return the gradients in the order of the arguments."""
        (operator, run, how), kept = ctx.call, ctx.saved_tensors
        if run == operator._below:  # a level of torch.func, which may be over: see `torch.func.vjp`
            kept = [_unwrapped(each) for each in kept]
        needed = ctx.needs_input_grad[3:]
        grads = operator.gradients(how, needed, grads, kept)
        return None, None, None, *grads, *[None] * (len(needed) - len(grads))

    @staticmethod
    def jvp(ctx, _operator, _run, _how, *tangents):
        """Return the results' tangents; torch takes no None for zeros beside another tangent."""
        operator, _, how = ctx.call
        found = operator.tangents(how, tangents, ctx.saved_tensors)
        pairs = zip(found, ctx.zeros, strict=True)
        return tuple(zeros if each is None else each for each, zeros in pairs)


def _unwrapped(tensor):
    """Return a tensor, or None, without the levels that are over, which have no addresses."""
    while tensor is not None and (inner := unwrap_if_dead(tensor)) is not tensor:
        tensor = inner
    return tensor


# Function.apply less its preparation for torch.func, whose levels the dispatcher goes through
apply = super(torch.autograd.Function, Node).apply
_LIBRARY = torch.library.Library("house", "FRAGMENT")


def define(name, schema, run, fake=None):
    """Return a new operator, of a name that no other copy of this file has in this process.

    A call takes less than half the host time of one by `torch.library.custom_op`.

    Args:
        name: Its name, unless that is taken.
        schema: `(Tensor x, bool keep) -> Tensor`, for example.
        run: The function; without `fake`, torch traces what it calls.
        fake: The same for tensors without memory.
    """
    while hasattr(torch.ops.house, name):
        name += "_"
    _LIBRARY.define(name + schema)
    kind = "Explicit" if fake else "Implicit"
    _LIBRARY.impl(name, run, f"Composite{kind}Autograd")
    if fake:
        torch.library.register_fake(f"house::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.house, name).default


def lacks_kernels(x):
    """Return whether plain torch must compute with x."""
    return not x.is_cuda and not has_kernels(x.dtype)


@functools.cache
def has_kernels(dtype):
    """Return whether kernels compute with a CPU's tensors of a dtype; warn once if they do not."""
    why = None
    if triton.knobs.runtime.interpret:
        if dtype == torch.bfloat16 and not _adds_bfloat16():
            why = "Triton's interpreter takes the bits of bfloat16 for integers"
    else:
        try:
            triton.runtime.driver.active.get_current_target()
        except RuntimeError:
            why = "Triton has no driver for this machine"
    if why:
        warnings.warn(f"{why}: plain torch computes the house's functions", stacklevel=2)
    return not why


def _adds_bfloat16():
    """Return whether somebody has mended the interpreter, as the house's harness does."""
    from triton.runtime import interpreter

    bits = interpreter.np.array([0x3F80], interpreter.np.uint16)
    one = interpreter.TensorHandle(bits, triton.language.bfloat16)
    return interpreter.interpreter_builder.create_fadd(one, one).data[0] == 0x4000
