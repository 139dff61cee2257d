"""A masked layer for autograd and torch.compile, given its two directions."""

import torch
from torch.compiler import is_compiling

from .forms import height_of
from .operators import refuse_second_derivative, traced, unused
from .partition import Partition, check_mask, kept_partition, partition_of


def layer(name, stacks, forward, backward, check, kept=(), products=1):
    """Return a function of x, the weights and the mask that returns the layer's output.

    Both directions get x and g with contiguous rows, and weights of a stack that lie alike.

    Args:
        name: The op's name.
        stacks: For each gradient of several weights, which are one tensor, their places.
        forward: `forward((tokens, tile, keep), x, *weights, order)` returns the output, what
            backward needs of it, if that is to be kept, and x's packed copy.
        backward: `backward((tokens, tile, *wanted), g, x, *weights, *kept, packed, order)` returns
            the gradients of x and of the stacks; None for what is not wanted.
        check: Raise ValueError for what does not fit: `check(tokens, x, *weights)`.
        kept: For all that is kept, functions of the partition's rows, x and the weights that return
            its shape.
        products: The products of the same x and mask.
    """
    inputs = 1 + sum(map(len, stacks))  # x and the weights

    def even(x, *tensors):
        tensors = [_in_rows(x), *tensors]
        for places in stacks:
            stack = [tensors[place] for place in places]
            dense = False not in [each.is_contiguous() for each in stack]  # no slower question
            if not dense and len({each.stride() for each in stack}) > 1:
                for place in places:
                    tensors[place] = tensors[place].contiguous()
        return tensors

    def run_forward(partition_of, keep, *tensors):
        """Return the partition of the mask, which is the last tensor, and forward's results."""
        *tensors, mask = tensors
        partition = partition_of(mask, height_of(*tensors[:2], products))
        how = partition.tokens, partition.tile, keep
        return partition, forward(how, *even(*tensors), partition.sorted)

    def run_backward(partition, wanted, g, *tensors):
        how = partition.tokens, partition.tile, *wanted
        return backward(how, _in_rows(g), *even(*tensors), partition.sorted)

    def by_place(d_x, *stacked):
        """Return the gradients in the order of the arguments."""
        grads = [d_x, *[None] * inputs]
        for places, stack in zip(stacks, stacked, strict=True):
            if stack is not None:
                for place, grad in zip(places, stack.unbind(), strict=True):
                    grads[place] = grad
        return tuple(grads)

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.partition, (out, *saved) = run_forward(kept_partition, True, *tensors)
            ctx.save_for_backward(*tensors[:-1], *saved)
            return out

        @staticmethod
        def backward(ctx, g):
            refuse_second_derivative(name)
            needs = ctx.needs_input_grad
            wanted = needs[0], *[any(needs[place] for place in places) for places in stacks]
            return by_place(*run_backward(ctx.partition, wanted, g, *ctx.saved_tensors))

    # Function.apply less its preparation for torch.func, which never comes here
    apply = super(torch.autograd.Function, Layer).apply

    def run(*tensors):
        if traced():
            return operator(*tensors)[0] if is_compiling() else Layer.apply(*tensors)
        if torch.is_grad_enabled():
            for each in tensors:
                if each.requires_grad:
                    return apply(*tensors)
        return run_forward(kept_partition, False, *tensors)[1][0]

    # torch.compile takes each direction as one operator, and looks into neither. The order of the
    # tokens goes from one to the other as a tensor, and none is kept for a next call: CUDA graphs
    # (mode="reduce-overhead") own the memory of all that an operator makes.

    def define(name, run, arguments, results):
        of_arguments = ", ".join(f"Tensor t{place}" for place in range(arguments))
        schema = f"({of_arguments}) -> ({', '.join(['Tensor'] * results)})"
        return torch.library.custom_op(unused(name), run, mutates_args=(), schema=schema)

    def compiled_forward(*tensors):
        partition, (*results, _) = run_forward(partition_of, True, *tensors)
        return *results, partition.sorted

    def compiled_backward(g, *tensors):
        *tensors, order = tensors
        partition = Partition(g.shape[0], height_of(*tensors[:2], products), order)
        return tuple(run_backward(partition, (True,) * (1 + len(stacks)), g, *tensors, None))

    operator = define(name, compiled_forward, inputs + 1, 2 + len(kept))
    arguments = 1 + inputs + len(kept) + 1
    backward_operator = define(f"{name}_backward", compiled_backward, arguments, 1 + len(stacks))

    @operator.register_fake
    def _(*tensors):
        *tensors, mask = tensors
        x, tile = tensors[0], height_of(*tensors[:2], products)
        check_mask(mask)
        check(mask.shape[0], *tensors)
        rows = Partition(mask.shape[0], tile, None).rows
        # a token's output has a number for each row of the last weights, w_t or u2
        shapes = [(x.shape[0], tensors[stacks[-1][-1]].shape[0])]
        shapes += [shape(rows, *tensors) for shape in kept]
        return *map(x.new_empty, shapes), x.new_empty(rows + 4, dtype=torch.int32)

    @backward_operator.register_fake
    def _(g, x, *tensors):
        shapes = [(len(places), *tensors[places[0] - 1].shape) for places in stacks]
        return tuple(map(x.new_empty, (x.shape, *shapes)))

    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:-1], *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    def differentiate(ctx, g, *_):
        refuse_second_derivative(name)
        return by_place(*backward_operator(g, *ctx.saved_tensors))

    operator.register_autograd(differentiate, setup_context=save)
    return run


def _in_rows(matrix):
    """Return the matrix, or a copy where its columns do not follow one another."""
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()


def check(op, tokens, x, names, weights, shapes):
    """Raise ValueError if a layer's operands do not fit; a kernel would leave their memory.

    tokens: those of the mask; shapes: those that the weights must have.
    """
    if x.shape[0] != tokens:
        raise ValueError(f"{op}: mask has {tokens} tokens, and x is {list(x.shape)}")
    for name, weight, shape in zip(names, weights, shapes, strict=True):
        if tuple(weight.shape) != shape:
            raise ValueError(f"{op}: {name} is {list(weight.shape)}, not {list(shape)}")
        if weight.dtype != x.dtype or not x.dtype.is_floating_point:
            raise ValueError(f"{op}: {name} is {weight.dtype}, and x is {x.dtype}")
