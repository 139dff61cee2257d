"""What the house refuses: calls that no op defines, in one line, before a kernel runs."""

import importlib

import pytest
import rope as read
import torch
from fast import masked_ffn, masked_linear, rope, rope_, rope_qk, rotate_half
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map

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
    "positions of all ranks": (T, FREQS[:11], CP, "fewer positions"),
    "odd angles": (T, FREQS[..., :7], {}, "even number"),
    "angles wider than a head": (T[..., :6], FREQS, {}, "no more than t has"),
    "angles of each batch": (T, FREQS.expand(12, 2, 1, 8), {}, "freqs .* is not"),
    "integer angles": (T, FREQS.int(), {}, "floating point"),
    "integer tokens": (T.int(), FREQS, {}, "floating point"),
    "angles that take a gradient": (T, FREQS.clone().requires_grad_(), {}, "no gradient"),
    "a format that there is not": (T, FREQS, {"tensor_format": "bhsd"}, "'bhsd', not one of"),
    "thd without ends": (PACKED, FREQS, {"tensor_format": "thd"}, "thd needs it"),
    "ends with sbhd": (T, FREQS, {"cu_seqlens": ENDS}, "belongs to thd"),
    "three dimensions": (PACKED, FREQS, {}, "is not .s, b, h, d"),
    "packed in four dimensions": (T, FREQS, THD, "is not .tokens, h, d"),
    "ends of floats": (PACKED, FREQS, THD | {"cu_seqlens": ENDS.float()}, "cu_seqlens is a list"),
    "no ends": (PACKED, FREQS, THD | {"cu_seqlens": ENDS[:1]}, "from 0 to the number"),
    "starts of floats": (T, FREQS, {"start_positions": STARTS.float()}, "start_positions is a"),
    "too few starts": (T, FREQS, {"start_positions": STARTS[:1]}, "where b is 2"),
    "a rank too many": (T, FREQS, {"cp_size": 2, "cp_rank": 2}, "not one of 2 ranks"),
    "half a chunk": (T[:5], FREQS, CP, "two chunks"),
    "angles elsewhere": (T, FREQS.to("meta"), {}, "are on cpu and meta"),
    "starts elsewhere": (T, FREQS, {"start_positions": STARTS.to("meta")}, "are on cpu and meta"),
}
# it has no context parallelism, and Triton refuses pointers to other devices
READ = [name for name in ROPE if "cp_size" not in ROPE[name][2] and "elsewhere" not in name]
WAYS = {
    "a call": lambda t, *a, **o: rope(t, *a, **o),
    "training": lambda t, *a, **o: rope(t.requires_grad_(t.is_floating_point()), *a, **o),
    "in place": lambda t, *a, **o: rope_(t.clone(), *a, **o),
    "with keys": lambda t, *a, **o: rope_qk(t, t[..., :1, :], *a, **o),
}


def refused(words, call, *tensors, **options):
    """Assert that a call is refused in one line, and once more: what was refused is not kept."""
    for _ in range(2):
        with pytest.raises(ValueError, match=words) as raised:
            call(*tensors, **options)
        assert "\n" not in str(raised.value)


def traced(operator, *arguments):
    """Call an operator as torch traces it, on tensors without memory."""
    mode = FakeTensorMode()

    def without_memory(argument):
        return mode.from_tensor(argument) if torch.is_tensor(argument) else argument

    with mode:
        return operator(*tree_map(without_memory, arguments))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ROPE)
def test_rope_refuses_what_does_not_fit(name, way):
    t, freqs, options, words = ROPE[name]
    refused(words, WAYS[way], t.detach(), freqs, **options)


@pytest.mark.parametrize("name", READ)
def test_the_rope_to_be_read_refuses_it_too(name):
    t, freqs, options, _ = ROPE[name]
    refused("^rope: ", read.rope, t.detach(), freqs, **options)


@pytest.mark.parametrize("name", sorted(set(ROPE) - {"angles that take a gradient"}))
def test_the_compiler_is_refused_what_does_not_fit(name):
    t, freqs, options, words = ROPE[name]
    options = {"tensor_format": "sbhd", "interleaved": False, "cp_size": 1, "cp_rank": 0} | options
    tensors = t, None, freqs, options.pop("start_positions", None), options.pop("cu_seqlens", None)
    refused(words, traced, torch.ops.house.rope, *tensors, *options.values(), False)


@pytest.mark.parametrize("x", [drawn(4, 7), torch.tensor(1.0), drawn(0, 3)])
def test_rotate_half_refuses_features_without_a_partner(x):
    refused("d even", rotate_half, x)
    how = "sbhd", False, 1, 0, False
    refused("d even", traced, torch.ops.house.rope, x, None, None, None, None, *how)


MASK = torch.arange(40) % 3 == 0
X, W, DOWN = drawn(40, 24), drawn(16, 24), drawn(24, 16)
LAYERS = {masked_linear: [X, W, W], masked_ffn: [X, W, DOWN, W, W, DOWN, W]}


def changed(place, change):
    return lambda tensors: tensors.__setitem__(place, change(tensors[place]))


MASKED = {
    "a mask of bytes": (changed(-1, lambda m: 2 * m.byte()), "mask"),
    "a shorter mask": (changed(-1, lambda m: m[:20]), "mask"),
    "fewer features of x": (changed(0, lambda x: x[:, :16]), r"not \[16, 16\]|not \[16\]"),
    "x of another dtype": (changed(0, lambda x: x.bfloat16()), "bfloat16"),
    "a weight of another dtype": (changed(2, lambda w: w.half()), "float16"),
    "a weight elsewhere": (changed(2, lambda w: w.to("meta")), "on meta"),
    "a weight of other features": (changed(2, lambda w: w[:, :8]), "not"),
    "the first weight in one dimension": (changed(1, lambda w: w[0]), "no matri"),
}


@pytest.mark.parametrize("op", LAYERS)
@pytest.mark.parametrize("name", MASKED)
def test_a_masked_layer_refuses_what_does_not_fit(op, name):
    change, words = MASKED[name]
    tensors = [*LAYERS[op], MASK]
    op(*tensors)  # the plan of the right mask is kept
    change(tensors)
    read = getattr(importlib.import_module(op.__name__), op.__name__)
    refused("x is|mask|not", read, *tensors)
    refused(words, op, *tensors)
    refused(words, op, *(each.detach().requires_grad_() for each in tensors[:-1]), tensors[-1])
    refused(words, traced, getattr(torch.ops.house, op.__name__), *tensors)


@pytest.mark.parametrize("op", LAYERS)
def test_a_known_mask_of_fewer_tokens_is_refused_for_more(op):
    """The second call gets the order of the first one's mask, and no mask."""
    x, *weights = LAYERS[op]
    mask = MASK[:30]
    op(x[:30], *weights, mask)
    for rows in (29, 40):
        refused("mask", op, x[:rows], *weights, mask)
