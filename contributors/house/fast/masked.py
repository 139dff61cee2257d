"""The masked layers: tokens sorted by kind on the device, and one product a token and weight."""

import math

import torch
from torch.autograd import forward_ad
from torch.nn.functional import linear, silu

from .forms import height_of
from .gradients import weight_gradients
from .launch import Recorded
from .operators import Reverse, applied, define, lowered, missing, traced, warn_once
from .partition import Partition, check_mask, kept_partition, partition_of, sorted_operator
from .products import gated_product, gates_gradient, product
from .tiles import Rows, pack


class Layer:
    """A masked layer: a function of x, the weights and the mask that returns the layer's output."""

    def __init__(self, name, weights, stacks, forward, backward, plain, kept=0):
        """Take the directions, which get x and g in rows, and weights of a stack that lie alike.

        Args:
            name: The op's name.
            weights: The names of the weights, of the visual kind and then of the textual.
            stacks: For each gradient of several weights, which are one tensor, the weights' places
                behind x.
            forward: `forward((tokens, tile, keep), x, *weights, order)` returns the output, the
                gates that backward needs, and x's packed copy; None for what is not kept.
            backward: `backward((tokens, tile, *wanted), g, x, *weights, gates, packed, order)`
                returns the gradients of x and of the stacks; None for what is not wanted.
            plain: The layer of one kind in plain torch: `plain(x, *weights)`.
            kept: The number of the gates, [kept, rows, inner].
        """
        self.name, self.stacks, self._kept, self._weights = name, stacks, kept, weights
        self._forward, self._backward, self._plain = forward, backward, plain
        arguments = ", ".join(f"Tensor {each}" for each in ("x", *weights))
        self.operator = define(
            name, f"({arguments}, Tensor mask, bool keep) -> (Tensor, Tensor)", self._operate
        )
        self.launched = define(
            f"{name}_launch", f"({arguments}, Tensor order, bool keep) -> (Tensor, Tensor)",
            self._launch, self._fake_forward, self._forward_flops,
        )  # fmt: skip
        grads = ", ".join(["Tensor"] * (1 + len(stacks)))
        self.backward_operator = define(
            f"{name}_backward",
            f"(Tensor g, {arguments}, Tensor? gates, Tensor order, bool[] wanted) -> ({grads})",
            self._operate_backward, self._fake_backward, self._backward_flops,
        )  # fmt: skip

    def __str__(self):
        """Return the name, for messages."""
        return self.name

    def __call__(self, *tensors):
        """Return the output for x, the weights and the mask."""
        if traced():
            return self.operator(*tensors, False)[0]
        if not tensors[0].is_cuda and (why := missing(tensors[0].dtype)):
            return self._in_plain_torch(why, *tensors)
        if torch._C._is_any_autocast_enabled():
            tensors = _cast(*tensors)
        if torch.is_grad_enabled():
            for each in tensors:
                if each.requires_grad:
                    return eager_apply(self, *tensors)
        return self.run_forward(self.kept_partition(*tensors), False, *tensors[:-1])[0]

    def kept_partition(self, x, weight, *others):
        """Return the partition of the mask, which is the last tensor."""
        return kept_partition(others[-1], self._height(x, weight))

    def run_forward(self, partition, keep, *tensors):
        """Return forward's results for x and the weights."""
        how = partition.tokens, partition.tile, keep
        return self._forward(how, *self._even(*tensors), partition.sorted)

    def run_backward(self, partition, wanted, g, *tensors):
        """Return the gradients of x and of the stacks, for x, the weights and what is kept."""
        how = partition.tokens, partition.tile, *wanted
        return self._backward(how, _in_rows(g), *self._even(*tensors), partition.sorted)

    def wanted(self, needs):
        """Return whether x and each stack need a gradient; needs: a word for each argument."""
        _, of_x, *_ = needs
        return of_x, *[any(needs[1 + place] for place in places) for places in self.stacks]

    def by_place(self, wanted, d_x, *stacked):
        """Return the gradients in the order of a call's arguments: the layer, x, the weights."""
        grads = [None, d_x if wanted[0] else None, *[None] * (1 + len(self._weights))]
        for of_stack, places, stack in zip(wanted[1:], self.stacks, stacked, strict=True):
            if of_stack:
                for place, grad in zip(places, stack.unbind(), strict=True):
                    grads[1 + place] = grad
        return tuple(grads)

    def _height(self, x, weight):
        return height_of(x, weight, len(self.stacks[0]) // 2)

    def _even(self, x, *tensors):
        tensors = [_in_rows(x), *tensors]
        for places in self.stacks:
            stack = [tensors[place] for place in places]
            dense = False not in [each.is_contiguous() for each in stack]  # no slower question
            if not dense and len({each.stride() for each in stack}) > 1:
                for place in places:
                    tensors[place] = tensors[place].contiguous()
        return tensors

    def _in_plain_torch(self, why, x, *tensors):
        warn_once(f"{why}: plain torch computes {self.name}")
        *weights, mask = tensors
        self._height(x, weights[0])
        check_mask(mask)
        _check(self.name, mask.shape[0], x, *weights)
        half = len(weights) // 2
        visual, textual = (self._plain(x, *each) for each in (weights[:half], weights[half:]))
        return torch.where(mask[:, None], visual, textual)

    def _operate(self, *arguments):
        *tensors, keep = arguments
        x = tensors[0]
        if x.device.type == "cpu" and (why := missing(x.dtype)):
            return self._in_plain_torch(why, *tensors), x.new_empty(0)
        *tensors, mask = _cast(*tensors)
        tile = self._height(*tensors[:2])
        check_mask(mask)
        _check(self.name, mask.shape[0], *tensors)
        due = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
        if due or forward_ad._current_level >= 0:
            return traced_apply(self, *tensors, mask, sorted_operator(mask, tile))
        return self.launched(*tensors, mask, keep)  # without a gradient, torch merges no two sorts

    def _launch(self, *arguments):
        *tensors, order, keep = arguments
        partition = Partition(len(tensors[0]), self._height(*tensors[:2]), order)
        if order.dtype == torch.bool:  # the mask
            partition = partition_of(order, partition.tile)
        out, gates, _ = self.run_forward(partition, keep, *tensors)
        return out, out.new_empty(0) if gates is None else gates

    def _fake_forward(self, x, *arguments):
        *weights, _order, keep = arguments
        rows = Partition(x.shape[0], self._height(x, weights[0]), None).rows
        # a token's output has a number for each row of the last weights, w_t or u2
        out = x.new_empty(x.shape[0], weights[self.stacks[-1][-1] - 1].shape[0])
        gates = (self._kept, rows, weights[0].shape[0]) if self._kept and keep else (0,)
        return out, x.new_empty(gates)

    def _forward_flops(self, x, *arguments, **_):
        *weights, _order, _keep = arguments
        return x[0] * sum(map(math.prod, weights))  # two for each number of either kind's weights

    def _operate_backward(self, g, x, *arguments):
        *tensors, order, wanted = arguments
        partition = Partition(g.shape[0], self._height(x, tensors[0]), order)
        grads = self.run_backward(partition, wanted, g, x, *tensors, None)
        return tuple(g.new_empty(0) if grad is None else grad for grad in grads)

    def _fake_backward(self, g, x, *arguments):
        wanted, shapes = arguments[-1], [x.shape]
        shapes += [(len(places), *arguments[places[0] - 1].shape) for places in self.stacks]
        return tuple(map(g.new_empty, map(lambda due, shape: shape if due else 0, wanted, shapes)))

    def _backward_flops(self, g, x, *arguments, **_):
        (of_x, *of_stacks), products = arguments[-1], 0
        for place, places in enumerate(self.stacks):
            # the gradient of what a weight multiplies, and its own; x alone may need none
            times = of_stacks[place] + (of_x if place == 0 else 1)
            products += times * sum(math.prod(arguments[each - 1]) for each in places)
        return x[0] * products


class Eager(torch.autograd.Function):
    """A layer for autograd: function of the layer, x, the weights and the mask."""

    @staticmethod
    def forward(ctx, layer, *tensors):
        """Return the output."""
        ctx.layer = layer
        ctx.partition = layer.kept_partition(*tensors)
        out, *kept = layer.run_forward(ctx.partition, True, *tensors[:-1])
        ctx.save_for_backward(*tensors[:-1], *kept)
        return out

    @staticmethod
    def backward(ctx, g):
        """Return the gradients."""
        layer, partition = ctx.layer, ctx.partition
        wanted = layer.wanted(ctx.needs_input_grad)
        if torch.is_grad_enabled():  # create_graph
            *saved, _packed = ctx.saved_tensors
            grads = Backward.apply(layer, *wanted, g, *saved, partition.sorted)
        else:
            grads = layer.run_backward(partition, wanted, g, *ctx.saved_tensors)
        return layer.by_place(wanted, *grads)


class Traced(Reverse):
    """The same of operators, for torch.func and whatever traces a call."""

    @staticmethod
    def forward(layer, *tensors):
        """Return the output and the gates, for x, the weights, the mask and its order."""
        *tensors, mask, order = tensors
        arguments = (*tensors, mask, True), (*tensors, order, True)
        return lowered(layer.operator, layer.launched, *arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep what backward takes."""
        ctx.op, *tensors, _mask, order = inputs
        _, gates = output
        ctx.save_for_backward(*tensors, gates, order)
        ctx.mark_non_differentiable(gates)

    @staticmethod
    def backward(ctx, g, _):
        """Return the gradients."""
        wanted = ctx.op.wanted(ctx.needs_input_grad)
        grads = Backward.apply(ctx.op, *wanted, g, *ctx.saved_tensors)
        return *ctx.op.by_place(wanted, *grads), None


class Backward(Reverse):
    """The gradients as a function of their own, of which autograd knows that it has none."""

    @staticmethod
    def forward(layer, *arguments):
        """Return the gradients of x and of the stacks, empty where not wanted."""
        count = 1 + len(layer.stacks)
        return layer.backward_operator(*arguments[count:], arguments[:count])

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep the layer's name."""
        ctx.op = inputs[0]

    @staticmethod
    def backward(ctx, *grads):
        """Refuse a second derivative: autograd sees only launches in the first one."""
        raise NotImplementedError(f"{ctx.op} has no second derivative: leave out create_graph")


traced_apply = applied(Traced)
# Function.apply less its preparation for torch.func, which calls the operator
eager_apply = super(torch.autograd.Function, Eager).apply


def _cast(*tensors):
    """Return the tensors as autocast has a product take them."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    stay = torch.float64, dtype
    return [
        each if each.dtype in stay or not each.dtype.is_floating_point else each.to(dtype)
        for each in tensors
    ]


def _in_rows(matrix):
    """Return the matrix, or a copy where its columns do not follow one another."""
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()


WEIGHTS = {"masked_linear": ("w_v", "w_t"), "masked_ffn": ("w1", "w2", "w3", "u1", "u2", "u3")}
DTYPES = torch.bfloat16, torch.float16, torch.float32


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
        if weight.dtype != x.dtype or x.dtype not in DTYPES:
            raise ValueError(f"{op}: {name} is {weight.dtype}, and x is {x.dtype}")


@Recorded
def _linear_forward(launch, tokens, tile, _keep, x, w_v, w_t, order):
    """Return the output [tokens, out], no gates, and x's packed copy, if there is one."""
    _check("masked_linear", tokens, x, w_v, w_t)
    order = Partition(tokens, tile, order)
    x = pack(launch, order, Rows(x), w_v.shape[0])
    return product(launch, x, [w_v.T, w_t.T], order), None, x.packed


@Recorded
def _linear_backward(
    launch, tokens, tile, of_x, of_weights, g, x, w_v, w_t, _gates, packed, order
):  # fmt: skip
    """Return d_x [tokens, in] and d_w [2, out, in]; None for what is not wanted."""
    order, both = Partition(tokens, tile, order), of_x and of_weights
    g = pack(launch, order, Rows(g), w_v.shape[1] * (1 + both))
    d_x = product(launch, g, [w_v, w_t], order, triggers=both) if of_x else None
    d_w = weight_gradients(launch, g, Rows(x, packed), order, early=both) if of_weights else None
    return d_x, d_w


_linear = Layer(
    "masked_linear", WEIGHTS["masked_linear"], [(1, 2)], _linear_forward, _linear_backward, linear
)


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
    """Return the output [tokens, width], the gates [3, rows, inner] to keep, and x's copy."""
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
    d_gates, hidden = gates_gradient(launch, g, [w2, u2], gates, order), Rows(gates[2], sorted=True)
    d_w = weight_gradients(launch, g, hidden, order) if of_down else None
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

    Two directions, so that the memory of g's copy is free in the second one.
    """
    *sizes, of_x, of_up, of_down = how
    d_gates, d_down = _backward_down((*sizes, of_down), g, w2, u2, gates, order)
    if not (of_x or of_up):
        return None, None, d_down
    d_x, d_up = _backward_up((*sizes, of_x, of_up), d_gates, x, w1, w3, u1, u3, packed, order)
    return d_x, d_up, d_down


def _plain_ffn(x, w1, w2, w3):
    return linear(silu(linear(x, w1)) * linear(x, w3), w2)


_ffn = Layer(
    "masked_ffn", WEIGHTS["masked_ffn"], [(1, 3, 4, 6), (2, 5)], _ffn_forward, _ffn_backward,
    _plain_ffn, kept=3,
)  # fmt: skip


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
