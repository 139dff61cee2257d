"""The masked layers: tokens sorted by kind on the device, and one product a token and weight."""

import functools
import math

import torch
from torch.nn.functional import linear, silu

from .forms import height_of
from .gradients import weight_gradients
from .launch import Recorded
from .operators import Operator, apply, define, lacks_kernels, traced, transforms_are_active
from .partition import Partition, check_mask, kept_order, sorted_operator
from .products import gated_product, gates_gradient, product
from .tiles import Rows, pack


class Layer(Operator):
    """A masked layer, an operator of x, the weights and the order of the sorted tokens.

    Its results are the output, the gates that backward needs, and x's packed copy. The gradients of
    weights that lie alike are one tensor, a stack.
    """

    def __init__(self, name, stacks, forward, backward, plain):
        """Take the directions, for which x and g are in rows and the weights of a stack lie alike.

        Args:
            name: The op's name.
            stacks: For each stack, the weights' places behind x.
            forward: `forward((tile, keep), x, *weights, order)`; None for what is not kept.
            backward: `backward((tile, *wanted), g, x, *weights, order, gates, packed)` returns the
                gradients of x and of the stacks; None for what is not wanted.
            plain: The layer of one kind in plain torch: `plain(x, *weights)`.
        """
        self.stacks, self._of_one_kind = stacks, plain
        arguments = ", ".join(f"Tensor {each}" for each in ("x", *WEIGHTS[name]))
        grads = ["x", *(f"stack{number}" for number in range(len(stacks)))]
        whole = functools.partial(self._masked, sorted_operator)
        self._whole = define(name, f"({arguments}, Tensor mask) -> Tensor", whole)
        self._backward = Operator(
            name, f"(Tensor g, {arguments}, Tensor order, Tensor? gates, Tensor? packed, int tile,"
            f" {', '.join(f'bool of_{each}' for each in grads)})"
            f" -> ({', '.join('Tensor' for _ in grads)})",
            backward, self._fake_backward, self._backward_flops, suffix="_backward",
        )  # fmt: skip
        super().__init__(
            name, f"({arguments}, Tensor order, int tile, bool keep) -> (Tensor, Tensor)",
            forward, self._fake_forward, self._forward_flops, suffix="_launch",
        )  # fmt: skip

    def masked(self, *tensors):
        """Return the output for x, the weights and the mask."""
        if traced():
            return self._whole(*tensors)
        return self._masked(kept_order, *tensors)

    def kept(self, tensors, outputs):
        """Return the tensors, the gates and x's copy, which an operator does not return."""
        return (*tensors, *outputs[1:], None)[: len(tensors) + 2]

    def gradients(self, how, needed, grads, kept):
        """Return the gradients of x and the weights."""
        wanted = [True in [needed[at] for at in places] for places in ((0,), *self.stacks)]
        d_x, *stacks = self._backward((how[0], *wanted), _in_rows(grads[0]), *kept)
        by_place = {0: d_x} if wanted[0] else {}
        for places, stack, due in zip(self.stacks, stacks, wanted[1:], strict=True):
            by_place |= zip(places, stack.unbind(), strict=True) if due else {}
        return [by_place.get(at) for at in range(1 + len(WEIGHTS[self.name]))]

    def _masked(self, sort, x, *tensors):
        *weights, mask = tensors
        tile = height_of(x, weights[0], len(self.stacks[0]) // 2)
        if mask.numel() != x.shape[0]:
            raise ValueError(f"{self.name}: mask has {mask.numel()} tokens, x is {list(x.shape)}")
        if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type):
            dtype, operands = torch.get_autocast_dtype(x.device.type), (x, *weights)
            x, *weights = (each.to(dtype) if each.dtype in DTYPES else each for each in operands)
        if lacks_kernels(x):
            check_mask(mask)
            _check(self.name, x, *weights)
            half = len(weights) // 2
            kinds = (self._of_one_kind(x, *each) for each in (weights[:half], weights[half:]))
            return torch.where(mask[:, None], *kinds)
        order = sort(mask, tile)
        tensors = [_in_rows(x), *weights]
        for places in self.stacks:
            stack = [tensors[place] for place in places]
            dense = False not in [each.is_contiguous() for each in stack]  # no slower question
            if not dense and len({each.stride() for each in stack}) > 1:
                for place in places:
                    tensors[place] = tensors[place].contiguous()
        due = torch.is_grad_enabled() and True in [each.requires_grad for each in tensors]
        if sort is sorted_operator:  # gates are kept for another level of torch.func, too
            return self((tile, due or transforms_are_active()), *tensors, order)[0]
        how, tensors = (tile, due), (*tensors, order)
        return (apply(self, self.run, how, *tensors) if due else self.run(how, *tensors))[0]

    def _fake_forward(self, how, x, *tensors):
        *weights, order = tensors
        _check(self.name, x, *weights)
        # a token's output has a number for each row of the last weights, w_t or u2
        out = x.new_empty(x.shape[0], weights[1].shape[0])
        if not how[1] or len(weights) == 2:
            return (out,)
        return out, x.new_empty(3, order.shape[0] - 2, weights[0].shape[0])

    def _forward_flops(self, x, *arguments, **_):
        *weights, _order, _tile, _keep = arguments
        return x[0] * sum(map(math.prod, weights))  # two for each number of either kind's weights

    def _fake_backward(self, how, g, *tensors):
        shapes = tensors[0].shape, *((len(p), *tensors[p[0]].shape) for p in self.stacks)
        return [
            g.new_empty(shape) if due else None for shape, due in zip(shapes, how[1:], strict=True)
        ]

    def _backward_flops(self, g, x, *arguments, **_):
        (of_x, *of_stacks), products = arguments[-1 - len(self.stacks) :], 0
        for number, places in enumerate(self.stacks):
            # the gradient of what a weight multiplies, and its own; x alone may need none
            times = of_stacks[number] + (1 if number else of_x)
            products += times * sum(math.prod(arguments[each - 1]) for each in places)
        return x[0] * products


def _in_rows(matrix):
    """Return the matrix, or a copy where its columns do not follow one another."""
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()


WEIGHTS = {"masked_linear": ("w_v", "w_t"), "masked_ffn": ("w1", "w2", "w3", "u1", "u2", "u3")}
DTYPES = torch.bfloat16, torch.float16, torch.float32


def _check(op, x, *weights):
    """Raise ValueError if a layer's operands do not fit; a kernel would leave their memory."""
    up = weights[0].shape[0], x.shape[1]
    for name, weight in zip(WEIGHTS[op], weights, strict=True):
        shape = up[::-1] if name in ("w2", "u2") else up
        if tuple(weight.shape) != shape:
            raise ValueError(f"{op}: {name} is {list(weight.shape)}, not {list(shape)}")
        if weight.dtype != x.dtype or x.dtype not in DTYPES:
            raise ValueError(f"{op}: {name} is {weight.dtype}, and x is {x.dtype}")
        if weight.device != x.device:
            raise ValueError(f"{op}: {name} is on {weight.device}, and x on {x.device}")


@Recorded
def _linear_forward(launch, how, x, w_v, w_t, order):
    """Return the output [tokens, out], no gates, and x's packed copy, if there is one."""
    _check("masked_linear", x, w_v, w_t)
    plan = Partition(len(x), how[0], order)
    x = pack(launch, plan, Rows(x), w_v.shape[0])
    return product(launch, x, [w_v.T, w_t.T], plan), None, x.packed


@Recorded
def _linear_backward(launch, how, g, x, w_v, w_t, order, _gates, packed):
    """Return d_x [tokens, in] and d_w [2, out, in]; None for what is not wanted."""
    tile, of_x, of_weights = how
    plan, both = Partition(len(x), tile, order), of_x and of_weights
    g = pack(launch, plan, Rows(g), w_v.shape[1] * (1 + both))
    d_x = product(launch, g, [w_v, w_t], plan, triggers=both) if of_x else None
    d_w = weight_gradients(launch, g, Rows(x, packed), plan, early=both) if of_weights else None
    return d_x, d_w


_linear = Layer("masked_linear", [(1, 2)], _linear_forward, _linear_backward, linear)


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.

    Raises:
        ValueError: The shapes or the dtypes do not fit.
        NotImplementedError: A second derivative is asked for.
    """
    return _linear.masked(x, w_v, w_t, mask)


def _ffn_forward(how, x, w1, w2, w3, u1, u2, u3, order):
    """Return the output, the gates and x's copy; a launch depends on the distances of weights."""
    apart = w3.data_ptr() - w1.data_ptr(), u3.data_ptr() - u1.data_ptr()
    return _forward((*how, apart), x, w1, w2, w3, u1, u2, u3, order)


@Recorded
def _forward(launch, how, x, w1, w2, w3, u1, u2, u3, order):
    """Return the output [tokens, width], the gates [3, rows, inner] to keep, and x's copy."""
    _check("masked_ffn", x, w1, w2, w3, u1, u2, u3)
    tile, keep, apart = how
    plan = Partition(len(x), tile, order)
    x = pack(launch, plan, Rows(x), 2 * w1.shape[0])
    up = [w1.T, u1.T, w3.T, u3.T]
    hidden, gates = gated_product(launch, x, up, apart, plan, keep)
    out = product(launch, Rows(hidden, sorted=True), [w2.T, u2.T], plan)
    return out, gates, x.packed


@Recorded
def _ffn_backward(launch, how, g, x, w1, w2, w3, u1, u2, u3, order, gates, packed):
    """Return d_x, those of w1 and w3 [4, inner, width], and of w2 [2, width, inner], or None."""
    tile, of_x, of_up, of_down = how
    plan = Partition(len(x), tile, order)
    g = pack(launch, plan, Rows(g))
    d_gates, hidden = gates_gradient(launch, g, [w2, u2], gates, plan), Rows(gates[2], sorted=True)
    d_down = weight_gradients(launch, g, hidden, plan) if of_down else None
    d_gates = Rows(d_gates.flatten(0, 1), sorted=True)
    d_x = product(launch, d_gates, [w1, u1, w3, u3], plan) if of_x else None
    d_up = weight_gradients(launch, d_gates, Rows(x, packed), plan, pairs=2) if of_up else None
    return d_x, d_up, d_down


_ffn = Layer(
    "masked_ffn", [(1, 3, 4, 6), (2, 5)], _ffn_forward, _ffn_backward,
    lambda x, w1, w2, w3: linear(silu(linear(x, w1)) * linear(x, w3), w2),
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
    return _ffn.masked(x, w1, w2, w3, u1, u2, u3, mask)
