"""`rope_` in place and `rope_qk` in one launch, against `rope`'s reference."""

import contextlib
import functools
import importlib
from types import SimpleNamespace

import pytest
import torch
from fast import launch, rope, rope_, rope_qk

from common.ops.rope import reference

FREQS = torch.randn(12, 1, 1, 8, generator=torch.Generator().manual_seed(0))
ENDS = torch.tensor([0, 4, 12], dtype=torch.int32)
OPTIONS = [
    {"tensor_format": tensor_format, "interleaved": interleaved}
    | ({"cu_seqlens": ENDS} if tensor_format == "thd" else {})
    for tensor_format in ("sbhd", "bshd", "thd")
    for interleaved in (False, True)
]
close = functools.partial(torch.testing.assert_close, atol=1e-6, rtol=1e-5)
every_option = pytest.mark.parametrize("options", OPTIONS)


def qkv(options):
    """Return a leaf with the queries, keys and values of each token side by side."""
    rows = (12,) if options["tensor_format"] == "thd" else (6, 2)
    return torch.randn(*rows, 9, 18, requires_grad=True)


@every_option
@pytest.mark.parametrize("heads", [(4, 1), (3, 3), (2, 0)])
def test_queries_and_keys_turn_as_each_alone(options, heads):
    leaf = qkv(options)
    q, k, _ = leaf.split((*heads, 9 - sum(heads)), dim=-2)
    ours = rope_qk(q, k, FREQS, **options)
    theirs = tuple(reference(x, FREQS, **options) for x in (q, k))
    close(ours, theirs)
    upstream = [torch.randn_like(x) for x in ours]
    close(*(torch.autograd.grad(outs, leaf, upstream) for outs in (ours, theirs)))


@every_option
def test_in_place_turns_a_slice_and_leaves_the_rest(options):
    start, results = torch.randn_like(qkv(options)), []
    for turn in (rope_, lambda x, *a, **o: x.copy_(reference(x, *a, **o))):
        leaf = start.clone().requires_grad_()
        whole = leaf * 1
        returned = turn(whole[..., 2:5, :], FREQS, **options)
        assert returned.data_ptr() == whole[..., 2:5, :].data_ptr()
        results.append((whole, *torch.autograd.grad(whole, leaf, start)))
    close(*results)


@pytest.mark.parametrize("grid", [65535, 2])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(20, 2, 6, 8), (3, 4, 40, 18), (6, 5, 2, 12), (2, 3, 5, 192)])
def test_a_program_turns_the_heads_of_several_sequences(shape, interleaved, grid, monkeypatch):
    """Some programs have a sequence too many; a grid of two has the sequences on its first axis."""
    for name, value in {"GRID": grid, "SMALL": grid}.items():  # all is large for two bytes
        monkeypatch.setattr(importlib.import_module("fast.rope"), name, value)
    options = {"tensor_format": "bshd", "interleaved": interleaved}
    t = torch.randn(*shape[:3], shape[3] + 2, requires_grad=True)[..., : shape[3]]
    upstream, starts = torch.randn(shape), torch.arange(shape[0], dtype=torch.int32) % 5
    for options["start_positions"] in (None, starts):
        outs = [turn(t, FREQS, **options) for turn in (rope, reference)]
        close(*((out, *torch.autograd.grad(out, t, upstream)) for out in outs))
        close(rope_(t.detach().clone(), FREQS, **options), outs[1].detach())


def test_in_place_counts_as_a_modification():
    t = torch.randn(3, 1, 2, 8)
    wanted, version = reference(t, FREQS), t._version
    assert rope_(t, FREQS) is t and t.grad_fn is None
    assert t._version > version
    close(t, wanted)
    square = (x := torch.randn(3, 1, 2, 8, requires_grad=True) * 1) ** 2
    with torch.no_grad():
        rope_(x, FREQS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


def test_a_leaf_is_turned_without_gradients_alone():
    leaf = torch.randn(3, 1, 2, 8, requires_grad=True)
    wanted = reference(leaf, FREQS).detach()
    for t in (leaf, leaf[1:]):
        with pytest.raises(RuntimeError, match="leaf"):
            rope_(t, FREQS)
    with torch.no_grad():
        rope_(leaf, FREQS)
    close(leaf.detach(), wanted)


def test_other_strides_are_turned_but_no_memory_twice():
    t = torch.randn(3, 1, 8, 2).transpose(2, 3)
    wanted = reference(t, FREQS)
    close(rope_(t, FREQS), wanted)
    with pytest.raises(RuntimeError, match="single memory location"):
        rope_(torch.randn(1, 1, 2, 8).expand(3, 1, 2, 8), FREQS)


@pytest.mark.parametrize("sequences", [128, 129, 2048, 2049, 20000])
@pytest.mark.parametrize("cp_size", [1, 2])
def test_each_of_many_packed_sequences_is_found(sequences, cp_size):
    """Some are empty; more than 128 are looked for twice, more than 16,384 in wider steps."""
    dice = torch.Generator().manual_seed(sequences)
    ends = torch.randint(0, 3, (sequences,), generator=dice).mul(2 * cp_size).cumsum(0)
    ends = torch.cat((torch.zeros(1), ends)).to(torch.int32)
    t = torch.randn(int(ends[-1]) // cp_size, 1, 8)
    how = {"tensor_format": "thd", "cu_seqlens": ends, "cp_size": cp_size, "cp_rank": cp_size - 1}
    close(rope(t, FREQS, **how), reference(t, FREQS, **how))
    if cp_size == 1:
        how["start_positions"] = torch.arange(sequences, dtype=torch.int32) % 5
        close(rope(t, FREQS, **how), reference(t, FREQS, **how))


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_launch_is_on_the_gpu_of_its_tensors(number, monkeypatch):
    """Of a model on several, one is current; tensors of two are left to an ordinary launch."""
    current, whole = [0], {"shape": (), "dtype": None, "is_contiguous": bool, "stride": tuple}
    a, b = (
        SimpleNamespace(get_device=lambda gpu=gpu: gpu, data_ptr=int, **whole)
        for gpu in (number, number + 1)
    )
    replace = functools.partial(monkeypatch.setattr, raising=False)
    replace(torch.cuda, "device", lambda gpu: contextlib.nullcontext(current.append(gpu)))
    replace(torch._C, "_cuda_getDevice", lambda: current[-1])
    replace(torch._C, "_cuda_getCurrentRawStream", lambda gpu: -gpu)
    replace(launch, "replays", lambda: True)
    function = launch.Recorded(lambda *_: (current[-1], "ordinary"))
    function._recording = lambda *key: lambda _: (current[-1], *key[:2])
    assert function((), a, a) == (number, number, -number)
    assert function((), a, b) == (number, "ordinary")
