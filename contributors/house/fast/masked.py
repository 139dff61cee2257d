"""The masked layers: tokens sorted by kind on the device, and one product a token and weight."""

import torch
from torch.compiler import is_compiling

from .forms import height_of
from .gradients import weight_gradients
from .launch import Recorded
from .operators import refuse_second_derivative, traced, unused
from .partition import Partition, check_mask, kept_partition, partition_of
from .products import gated_product, gates_gradient, product
from .tiles import Rows, pack


def _layer(name, stacks, forward, backward, gates=0):
    """Return a function of x, the weights and the mask that returns the layer's output.

    Both directions get x and g with contiguous rows, and weights of a stack that lie alike.

    Args:
        name: The op's name.
        stacks: For each gradient of several weights, which are one tensor, their places.
        forward: `forward((tokens, tile, keep), x, *weights, order)` returns the output, what is
            kept for backward, and x's packed copy.
        backward: `backward((tokens, tile, *wanted), g, x, *weights, *kept, packed, order)` returns
            the gradients of x and of the stacks, where wanted.
        gates: The products of x, if several, which are kept for backward: [gates, rows, columns].
    """
    inputs, products = 1 + sum(map(len, stacks)), max(gates, 1)  # x and the weights

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

    operator = define(name, compiled_forward, inputs + 1, 2 + (gates > 0))
    arguments = 1 + inputs + (gates > 0) + 1
    backward_operator = define(f"{name}_backward", compiled_backward, arguments, 1 + len(stacks))

    @operator.register_fake
    def _(*tensors):
        *tensors, mask = tensors
        x, tile = tensors[0], height_of(*tensors[:2], products)
        check_mask(mask)
        _check(name, mask.shape[0], *tensors)
        rows = Partition(mask.shape[0], tile, None).rows
        # a token's output has a number for each row of the last weights, w_t or u2
        shapes = [(x.shape[0], tensors[stacks[-1][-1]].shape[0])]
        shapes += [(gates, rows, tensors[1].shape[0])] if gates else []
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


WEIGHTS = {"masked_linear": ("w_v", "w_t"), "masked_ffn": ("w1", "w2", "w3", "u1", "u2", "u3")}


def _check(op, tokens, x, *weights):
    """Raise ValueError if a layer's operands do not fit; a kernel would leave their memory.

    tokens: those of the mask.
    """
    if x.shape[0] != tokens:
        raise ValueError(f"{op}: mask has {tokens} tokens, and x is {list(x.shape)}")
    up = weights[0].shape[0], x.shape[1]
    for name, weight in zip(WEIGHTS[op], weights, strict=True):
        shape = up[::-1] if name in ("w2", "u2") else up
        if tuple(weight.shape) != shape:
            raise ValueError(f"{op}: {name} is {list(weight.shape)}, not {list(shape)}")
        if weight.dtype != x.dtype or not x.dtype.is_floating_point:
            raise ValueError(f"{op}: {name} is {weight.dtype}, and x is {x.dtype}")


@Recorded
def _linear_forward(launch, tokens, tile, _keep, x, w_v, w_t, order):
    """Return the output [tokens, out], and x's packed copy, if there is one."""
    _check("masked_linear", tokens, x, w_v, w_t)
    order = Partition(tokens, tile, order)
    x = pack(launch, order, Rows(x), w_v.shape[0])
    return product(launch, x, [w_v.T, w_t.T], order), x.packed


@Recorded
def _linear_backward(launch, tokens, tile, of_x, of_weights, g, x, w_v, w_t, packed, order):
    """Return d_x [tokens, in] and d_w [2, out, in]; None for what is not wanted."""
    order, both = Partition(tokens, tile, order), of_x and of_weights
    g = pack(launch, order, Rows(g), w_v.shape[1] * (1 + both))
    d_x = product(launch, g, [w_v, w_t], order, triggers=both) if of_x else None
    d_w = weight_gradients(launch, g, Rows(x, packed), order, early=both) if of_weights else None
    return d_x, d_w


_linear = _layer("masked_linear", [(1, 2)], _linear_forward, _linear_backward)


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.

    Raises:
        ValueError: The shapes or the dtypes do not fit.
        NotImplementedError: A second derivative is asked for.
    """
    return _linear(x, w_v, w_t, mask)


def _ffn_forward(how, x, w1, w2, w3, u1, u2, u3, order):
    """Return the output, the gates and x's copy; a launch depends on the distances of weights."""
    apart = w3.data_ptr() - w1.data_ptr(), u3.data_ptr() - u1.data_ptr()
    return _forward((*how, apart), x, w1, w2, w3, u1, u2, u3, order)


@Recorded
def _forward(launch, tokens, tile, keep, apart, x, w1, w2, w3, u1, u2, u3, order):
    """Return the output [tokens, width], the gates [2, rows, inner] to keep, and x's copy."""
    _check("masked_ffn", tokens, x, w1, w2, w3, u1, u2, u3)
    order = Partition(tokens, tile, order)
    x = pack(launch, order, Rows(x), 2 * w1.shape[0])
    up = [w1.T, u1.T, w3.T, u3.T]
    hidden, gates = gated_product(launch, x, up, apart, order, keep)
    out = product(launch, Rows(hidden, sorted=True), [w2.T, u2.T], order)
    return out, gates, x.packed


@Recorded
def _backward_down(launch, tokens, tile, of_down, g, w2, u2, gates, order):
    """Return the gates' gradient [2, rows, inner], and d_w2 and d_u2 [2, width, inner], or None."""
    order = Partition(tokens, tile, order)
    g = pack(launch, order, Rows(g))
    d_gates, hidden = gates_gradient(launch, g, [w2, u2], gates, order)
    d_w = weight_gradients(launch, g, Rows(hidden, sorted=True), order) if of_down else None
    return d_gates, d_w


@Recorded
def _backward_up(launch, tokens, tile, of_x, of_up, d_gates, x, w1, w3, u1, u3, packed, order):
    """Return d_x and the gradients of w1 and w3, u1 and u3 [4, inner, width], or None."""
    order, d_gates = Partition(tokens, tile, order), Rows(d_gates.flatten(0, 1), sorted=True)
    d_x = product(launch, d_gates, [w1, u1, w3, u3], order) if of_x else None
    d_w = weight_gradients(launch, d_gates, Rows(x, packed), order, pairs=2) if of_up else None
    return d_x, d_w


def _ffn_backward(how, g, x, w1, w2, w3, u1, u2, u3, gates, packed, order):
    """Return d_x, those of w1 and w3 [4, inner, width], and of w2 [2, width, inner], or None.

    Two directions, so that the memory of g's copy and of hidden is free in the second one.
    """
    *sizes, of_x, of_up, of_down = how
    d_gates, d_down = _backward_down((*sizes, of_down), g, w2, u2, gates, order)
    if not (of_x or of_up):
        return None, None, d_down
    d_x, d_up = _backward_up((*sizes, of_x, of_up), d_gates, x, w1, w3, u1, u3, packed, order)
    return d_x, d_up, d_down


_ffn = _layer("masked_ffn", [(1, 3, 4, 6), (2, 5)], _ffn_forward, _ffn_backward, gates=2)


def masked_ffn(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor, u1: torch.Tensor,
    u2: torch.Tensor, u3: torch.Tensor, mask: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return w2(silu(w1 x) * w3 x) for the tokens of the mask; the others take u1, u2 and u3.

    x: [tokens, width]; w1, w3, u1, u3: [inner, width]; w2, u2: [width, inner]; mask: bool [tokens].
    Returns x's shape and dtype.

    Raises:
        ValueError: The shapes or the dtypes do not fit.
        NotImplementedError: A second derivative is asked for.
    """
    return _ffn(x, w1, w2, w3, u1, u2, u3, mask)
