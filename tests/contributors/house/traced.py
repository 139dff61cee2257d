"""torch.compile and autograd around the house's ops."""

import functools
import importlib

import pytest
import torch
from fast import rope, rope_qk

from common.ops.rope import OP, reference

DICE = torch.Generator().manual_seed(0)
T, FREQS = (torch.randn(shape, generator=DICE) for shape in ((6, 2, 3, 16), (9, 1, 1, 8)))
ENDS = torch.tensor([0, 4, 12], dtype=torch.int32)
STARTS = torch.tensor([2, 0], dtype=torch.int32)
CALLS = {
    "sbhd": (T, {}),
    "interleaved": (T, {"interleaved": True}),
    "strided": (T[..., :12], {}),
    "bshd, starts": (T.transpose(0, 1), {"tensor_format": "bshd", "start_positions": STARTS}),
    "thd": (T.flatten(0, 1), {"tensor_format": "thd", "cu_seqlens": ENDS}),
}
close = functools.partial(torch.testing.assert_close, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_a_model_compiles_whole(name):
    """`fullgraph=True` refuses a graph break; test_house_on_gpu.py has Inductor."""
    torch._dynamo.reset()
    t, options = CALLS[name]

    def model(t):
        return 2 * rope(t + 0, FREQS, **options)

    dynamic = name in ("strided", "thd")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    x, upstream = t.detach().requires_grad_(), torch.randn_like(t)
    outs = compiled(x), 2 * reference(x, FREQS, **options)
    close(*((out, *torch.autograd.grad(out, x, upstream)) for out in outs))
    with torch.no_grad():
        close(compiled(x), outs[1])


def test_plain_torch_turns_as_kernels_do(monkeypatch):
    """Every smoke case, as on a CPU without the interpreter."""
    monkeypatch.setattr(importlib.import_module("fast.operators"), "has_kernels", lambda _: False)
    for case in OP.cases("smoke"):
        arguments = OP.draw(case, DICE)
        t = arguments.pop("t").requires_grad_()
        out, upstream = rope(t, **arguments), torch.randn_like(t)
        results = [out, *torch.autograd.grad(out, t, upstream)]
        arguments["freqs"] = arguments["freqs"].double()
        out = reference(t.double(), **arguments)
        exact = [out, *torch.autograd.grad(out, t, upstream.double())]
        for one, other in zip(results, exact, strict=True):
            assert (one - other).norm() <= 4e-3 * other.norm(), case.name


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("freqs", [FREQS, None])
def test_plain_torch_returns_what_the_compiler_was_told(name, back, freqs, monkeypatch):
    """In the same strides; a graph that is kept on the disk since kernels ran calls it so."""
    monkeypatch.setattr(importlib.import_module("fast.operators"), "has_kernels", lambda _: False)
    t, options = CALLS[name]
    how = {"tensor_format": "sbhd", "interleaved": False} | options
    tensors = t, t[..., :2, :], freqs, how.pop("start_positions", None), how.pop("cu_seqlens", None)
    call = *tensors, *how.values(), 1, 0, back
    torch.library.opcheck(torch.ops.house.rope.default, call, test_utils="test_faketensor")


def test_another_length_compiles_nothing_new_and_is_checked():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda t: rope(t, FREQS), backend=counter, dynamic=True)
    for rows in (4, 5, 6):
        close(compiled(T[:rows]), reference(T[:rows], FREQS))
    assert counter.frame_count == 1
    with pytest.raises(Exception, match="fewer positions"):
        compiled(torch.cat((T, T)))


def test_compiled_queries_and_keys_are_one_operator_since_they_are_one_launch():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch.compile(lambda t: rope_qk(t, t[..., :1, :], FREQS), fullgraph=True, backend=counter)(T)
    assert sum("house.rope" in str(node.target) for node in counter.graphs[0].graph.nodes) == 1


@pytest.mark.parametrize("name", ["freqs", "start_positions"])
def test_what_is_modified_before_backward_is_noticed(name):
    changed = {"freqs": FREQS.clone(), "start_positions": STARTS.clone()}
    out = rope(T.clone().requires_grad_(), **changed)
    changed[name].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        out.sum().backward()
