"""A masked layer for autograd and torch.compile, given its two directions."""

import torch
from torch.compiler import is_compiling

from .forms import height_of
from .operators import refuse_second_derivative, traced, unused
from .partition import Partition, kept_partition


def layer(name, weights, stacks, forward, backward, check, kept=None, products=1):
    """Return a function of x, the weights and the mask that returns the layer's output.

    Args:
        name: The op's name.
        weights: The weights' names.
        stacks: For each gradient of several weights, which are one tensor, their places.
        forward: `forward(partition, keep, x, *weights, mask)` returns the output, what backward
            needs of it, if that is to be kept, and x's packed copy.
        backward: `backward(partition, wanted, g, x, *weights, *kept, packed)` returns the gradients
            of x and of the stacks; None for what is not wanted.
        check: Raise ValueError for what does not fit: `check(tokens, mask, x, *weights)`.
        kept: The names of what is kept, with functions of the partition's rows, x and the weights
            that return their shapes.
        products: The products of the same x and mask.
    """
    kept = kept or {}

    def height(x, w, *_):
        return height_of(x, w, products)

    def by_place(d_x, *stacked):
        """Return the gradients in the order of the arguments."""
        grads = [d_x, *[None] * (len(weights) + 1)]
        for places, stack in zip(stacks, stacked, strict=True):
            if stack is not None:
                for place, grad in zip(places, stack.unbind(), strict=True):
                    grads[place] = grad
        return tuple(grads)

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.partition = kept_partition(tensors[-1], height(*tensors))
            out, *saved = forward(ctx.partition, True, *tensors)
            ctx.save_for_backward(*tensors[:-1], *saved)
            return out

        @staticmethod
        def backward(ctx, g):
            refuse_second_derivative(name)
            needs = ctx.needs_input_grad
            wanted = needs[0], *[any(needs[place] for place in places) for places in stacks]
            return by_place(*backward(ctx.partition, wanted, g, *ctx.saved_tensors))

    # Function.apply less its preparation for torch.func, which never comes here
    apply = super(torch.autograd.Function, Layer).apply

    def run(*tensors):
        if traced():
            return operator(*tensors)[0] if is_compiling() else Layer.apply(*tensors)
        if torch.is_grad_enabled():
            for each in tensors:
                if each.requires_grad:
                    return apply(*tensors)
        return forward(kept_partition(tensors[-1], height(*tensors)), False, *tensors)[0]

    # torch.compile takes each direction as one operator, and looks into neither. The order of the
    # tokens goes from one to the other as a tensor, and none is kept for a next call: CUDA graphs
    # (mode="reduce-overhead") own the memory of all that an operator makes.

    def define(name, run, arguments, results):
        types = ", ".join(f"Tensor {each}" for each in arguments), ", ".join(["Tensor"] * results)
        schema = "({}) -> ({})".format(*types)
        return torch.library.custom_op(unused(name), run, mutates_args=(), schema=schema)

    def run_forward(*tensors):
        partition = Partition(tensors[0].shape[0], height(*tensors))
        *results, _ = forward(partition, True, *tensors)
        return *results, partition.sorted

    def run_backward(g, *tensors):
        *tensors, order = tensors
        partition = Partition(tensors[0].shape[0], height(*tensors), order)
        return tuple(backward(partition, (True,) * (1 + len(stacks)), g, *tensors, None))

    names = "x", *weights
    operator = define(name, run_forward, (*names, "mask"), 2 + len(kept))
    names = "g", *names, *kept, "order"
    backward_operator = define(f"{name}_backward", run_backward, names, 1 + len(stacks))

    @operator.register_fake
    def _(*tensors):
        *differentiable, mask = tensors
        x, tile = tensors[0], height(*tensors)
        check(mask.numel(), mask, *differentiable)
        rows = Partition(mask.shape[0], tile).rows
        shapes = [shape(rows, *differentiable) for shape in kept.values()]
        # a token's output has a number for each row of the last weights, w_t or u2
        shapes = [(x.shape[0], tensors[stacks[-1][-1]].shape[0]), *shapes]
        order = x.new_empty(rows + 4, dtype=torch.int32)
        return *[x.new_empty(shape) for shape in shapes], order

    @backward_operator.register_fake
    def _(g, x, *tensors):
        shapes = [(len(places), *tensors[places[0] - 1].shape) for places in stacks]
        return tuple(x.new_empty(shape) for shape in (x.shape, *shapes))

    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:-1], *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    def differentiate(ctx, g, *_):
        refuse_second_derivative(name)
        return by_place(*backward_operator(g, *ctx.saved_tensors))

    operator.register_autograd(differentiate, setup_context=save)
    return run
