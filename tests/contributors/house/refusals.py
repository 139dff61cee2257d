"""What the house refuses: calls that no op defines, in one line, before a kernel runs."""

import functools

import pytest
import torch
from masked_ffn import masked_ffn
from masked_linear import masked_linear
from rope import rope
from rotary import rope_, rope_qk
from rotate_half import rotate_half
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

DICE = torch.Generator().manual_seed(0)


def drawn(*shape):
    return torch.randn(shape, generator=DICE)


T, FREQS = drawn(6, 2, 3, 16), drawn(12, 1, 1, 8)
PACKED, ENDS = T.flatten(0, 1), torch.tensor([0, 4, 12], dtype=torch.int32)
STARTS = torch.tensor([2, 0], dtype=torch.int32)
THD = {"tensor_format": "thd", "cu_seqlens": ENDS}
CP = {"cp_size": 2, "cp_rank": 1}
ROPE = {
    "positions of sbhd": (T, FREQS[:5], {}, "fewer positions"),
    "positions of bshd": (T, FREQS[:1], {"tensor_format": "bshd"}, "fewer positions"),
    "positions of all ranks": (T, FREQS[:11], CP, "fewer positions"),
    "odd angles": (T, FREQS[..., :7], {}, "even number"),
    "angles wider than a head": (T[..., :6], FREQS, {}, "no more than t has"),
    "angles of each batch": (T, FREQS.expand(12, 2, 1, 8), {}, "freqs .* is not"),
    "angles as a matrix": (T, FREQS[:, 0, 0], {}, "freqs .* is not"),
    "integer angles": (T, FREQS.int(), {}, "floating point"),
    "integer tokens": (T.int(), FREQS, {}, "floating point"),
    "angles that take a gradient": (T, FREQS.clone().requires_grad_(), {}, "no gradient"),
    "a format that there is not": (T, FREQS, {"tensor_format": "bhsd"}, "'bhsd', not one of"),
    "thd without ends": (PACKED, FREQS, {"tensor_format": "thd"}, "thd needs it"),
    "ends with sbhd": (T, FREQS, {"cu_seqlens": ENDS}, "belongs to thd"),
    "ends with bshd": (T, FREQS, THD | {"tensor_format": "bshd"}, "belongs to thd"),
    "three dimensions": (PACKED, FREQS, {}, "is not .s, b, h, d"),
    "packed in four dimensions": (T, FREQS, THD, "is not .tokens, h, d"),
    "ends in two dimensions": (PACKED, FREQS, THD | {"cu_seqlens": ENDS[None]}, "cu_seqlens is a"),
    "ends of no sequence": (PACKED, FREQS, THD | {"cu_seqlens": ENDS[:1]}, "cu_seqlens is .b"),
    "no ends": (PACKED, FREQS, THD | {"cu_seqlens": ENDS[:0]}, "cu_seqlens is .b"),
    "ends of floats": (PACKED, FREQS, THD | {"cu_seqlens": ENDS.float()}, "cu_seqlens is a list"),
    "starts of floats": (T, FREQS, {"start_positions": STARTS.float()}, "start_positions is a"),
    "too few starts": (T, FREQS, {"start_positions": STARTS[:1]}, "where b is 2"),
    "too few packed starts": (PACKED, FREQS, THD | {"start_positions": STARTS[:1]}, "b is 2"),
    "starts of bshd": (T, FREQS, {"tensor_format": "bshd", "start_positions": STARTS}, "b is 6"),
    "a rank too many": (T, FREQS, {"cp_size": 2, "cp_rank": 2}, "not one of 2 ranks"),
    "half a chunk": (T[:5], FREQS, CP, "two chunks"),
}


def both(*tensors):
    """Return tensors as a call has them, and as torch traces it, without memory."""
    mode = FakeTensorMode()
    return tensors, [each if each is None else mode.from_tensor(each) for each in tensors]


WAYS = {
    "a call": lambda t, *a, **o: rope(t, *a, **o),
    "training": lambda t, *a, **o: rope(t.requires_grad_(t.is_floating_point()), *a, **o),
    "in place": lambda t, *a, **o: rope_(t.clone(), *a, **o),
    "with keys": lambda t, *a, **o: rope_qk(t, t[..., :1, :], *a, **o),
    "no tokens": lambda t, *a, **o: rope(t[..., :0, :], *a, **o),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ROPE)
def test_rope_refuses_what_does_not_fit_each_time_and_in_one_line(name, way):
    t, freqs, options, words = ROPE[name]
    for _ in range(2):  # what was refused is not kept
        with pytest.raises(ValueError, match=words) as refused:
            WAYS[way](t.detach(), freqs, **options)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", sorted(set(ROPE) - {"angles that take a gradient"}))
def test_the_operator_of_rope_refuses_as_it_is_traced_and_as_it_runs(name):
    t, freqs, options, words = ROPE[name]
    named = {"cu_seqlens": None, "start_positions": None, "tensor_format": "sbhd", **options}
    positions = named["start_positions"], named["cu_seqlens"]
    how = named["tensor_format"], False, named.get("cp_size", 1), named.get("cp_rank", 0)
    for tensors in both(t, freqs, *positions):
        with pytest.raises(ValueError, match=words):
            torch.ops.house.rope(*tensors, *how, False)


def test_lengths_that_the_compiler_does_not_know_are_checked():
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: rope(t, FREQS), backend="aot_eager", dynamic=True)
    for length in (4, 12):
        compiled(drawn(length, 1, 1, 8))
    with pytest.raises(Exception, match="fewer positions"):
        compiled(drawn(13, 1, 1, 8))


def test_angles_may_take_a_gradient_where_none_is_recorded():
    with torch.no_grad():
        assert torch.equal(rope(T, FREQS.clone().requires_grad_()), rope(T, FREQS))


def test_no_sequence_of_no_token_is_no_error():
    assert rope(PACKED[:0], FREQS, **THD | {"cu_seqlens": ENDS[:1]}).shape == (0, 3, 16)


@pytest.mark.parametrize("x", [drawn(4, 7), torch.tensor(1.0), drawn(0, 3)])
def test_rotate_half_refuses_features_without_a_partner(x):
    with pytest.raises(ValueError, match="d even"):
        rotate_half(x)
    for (each,) in both(x):
        with pytest.raises(ValueError, match="d even"):
            torch.ops.house.rotate_half(each, False, False)


WIDTHS = {"x": (40, 24), "w": (16, 24), "down": (24, 16)}
MASK = torch.arange(40) % 3 == 0
LAYERS = {masked_linear: "x w w", masked_ffn: "x w down w w down w"}


def arguments(op):
    return [drawn(*WIDTHS[name]) for name in LAYERS[op].split()]


def changed(place, change):
    return lambda tensors: tensors.__setitem__(place, change(tensors[place]))


MASKED = {
    "a mask of bytes": (changed(-1, lambda m: 2 * m.byte()), "mask"),
    "a mask of numbers": (changed(-1, lambda m: m.float()), "mask"),
    "a shorter mask": (changed(-1, lambda m: m[:20]), "mask"),
    "a longer mask": (changed(-1, lambda m: torch.cat([m, m])), "mask"),
    "a mask in two dimensions": (changed(-1, lambda m: m[:, None]), "mask"),
    "one kind for all": (changed(-1, lambda m: m[0]), "mask"),
    "fewer features of x": (changed(0, lambda x: x[:, :16]), r"not \[16, 16\]|not \[16\]"),
    "more features of x": (changed(0, lambda x: torch.cat([x, x], 1)), r"not \[16, 48\]"),
    "x in three dimensions": (changed(0, lambda x: x[None]), "no matri"),
    "x of another dtype": (changed(0, lambda x: x.bfloat16()), "bfloat16"),
    "a weight of another dtype": (changed(2, lambda w: w.half()), "float16"),
    "a weight of other features": (changed(2, lambda w: w[:, :8]), "not"),
    "a weight of fewer rows": (changed(2, lambda w: w[:8]), "not"),
    "the first weight in one dimension": (changed(1, lambda w: w[0]), "no matri"),
    "the first weight of one number": (changed(1, lambda w: w[0, 0]), "no matri"),
    "the second weight in one dimension": (changed(2, lambda w: w[0]), "not"),
}


@pytest.mark.parametrize("op", LAYERS)
@pytest.mark.parametrize("name", MASKED)
def test_a_masked_layer_refuses_what_does_not_fit_each_time_and_in_one_line(op, name):
    change, words = MASKED[name]
    tensors = [*arguments(op), MASK]
    op(*tensors)  # the plan of the right mask is kept
    change(tensors)
    for trained in (False, True, False):
        with pytest.raises(ValueError, match=words) as refused:
            op(*(each.requires_grad_(trained) for each in tensors[:-1]), tensors[-1])
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("op", LAYERS)
@pytest.mark.parametrize("name", MASKED)
def test_the_operator_of_a_masked_layer_refuses_as_it_is_traced_and_as_it_runs(op, name):
    change, words = MASKED[name]
    tensors = [*arguments(op), MASK]
    change(tensors)
    for given in both(*tensors):
        with pytest.raises(ValueError, match=words):
            getattr(torch.ops.house, op.__name__)(*given)


@pytest.mark.parametrize("op", LAYERS)
def test_every_weight_of_a_masked_layer_is_looked_at(op):
    for place in range(1, len(arguments(op))):
        for change in (lambda w: w[:, :8], lambda w: w[:8], lambda w: w.half()):
            tensors = [*arguments(op), MASK]
            tensors[place] = change(tensors[place])
            with pytest.raises(ValueError, match=op.__name__):
                op(*tensors)


@pytest.mark.parametrize("op", LAYERS)
def test_a_known_mask_of_fewer_tokens_is_refused_for_more(op):
    """The second call gets the order of the first one's mask, and no mask."""
    x, *weights = arguments(op)
    mask = MASK[:30]
    op(x[:30], *weights, mask)
    for rows in (29, 40):
        with pytest.raises(ValueError, match="mask"):
            op(x[:rows], *weights, mask)


@pytest.mark.parametrize("op", LAYERS)
@pytest.mark.parametrize("inner", [torch.sum, lambda out: out.square().sum()])
def test_a_masked_layer_s_operator_has_no_second_derivative_either(op, inner):
    tensors = [each.requires_grad_() for each in arguments(op)]
    operator = getattr(torch.ops.house, op.__name__)
    loss = inner(operator(*tensors, MASK)[0])
    with pytest.raises(NotImplementedError, match=f"{op.__name__} has no second derivative"):
        torch.autograd.grad(loss, tensors[:1], create_graph=True)


@pytest.mark.parametrize("op", LAYERS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_takes_no_second_derivative(op, reentrant):
    gradients = []
    for call in (op, functools.partial(checkpoint, op, use_reentrant=reentrant)):
        tensors = [each.detach().requires_grad_() for each in TENSORS[op]]
        call(*tensors, MASK).square().sum().backward()
        gradients.append([each.grad for each in tensors])
    torch.testing.assert_close(*gradients)


TENSORS = {op: arguments(op) for op in LAYERS}
