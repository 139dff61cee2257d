"""torch.compile, torch.func and autograd around the house's ops."""

import importlib.util
import sys

import pytest
import rope as first
import rotate_half as rotating
import torch
from rope import rope
from rotary import rope_, rope_qk
from rotate_half import rotate_half
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from common.ops import rotate_half as half
from common.ops.rope import reference
from common.paths import ROOT

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


def expected(t, options, upstream):
    """Return eager's output and gradient."""
    t = t.detach().clone().requires_grad_()
    out = reference(t, FREQS, **options)
    return out, *torch.autograd.grad(out, t, upstream)


def close(got, wanted):
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)


MODELS = [*((name, "aot_eager", name in ("strided", "thd")) for name in CALLS)]
MODELS += [("sbhd", "aot_eager", True), ("sbhd", "inductor", False)]


@pytest.mark.parametrize(("name", "backend", "dynamic"), MODELS)
def test_a_model_compiles_whole(name, backend, dynamic):
    """`fullgraph=True` refuses a graph break; backward is compiled with forward."""
    torch._dynamo.reset()
    t, options = CALLS[name]

    def model(t):
        return 2 * rope(t + 0, FREQS, **options)

    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in {len(t), len(t) - (name == "sbhd")}:
        x = t[:rows].detach().requires_grad_()
        upstream = torch.randn_like(x)
        out, grad = expected(x, options, 2 * upstream)
        got = compiled(x)
        close(got, 2 * out)
        close(torch.autograd.grad(got, x, upstream)[0], grad)
        with torch.no_grad():
            close(compiled(x), 2 * out)


def test_another_length_compiles_nothing_new():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda t: rope(t, FREQS), backend=counter, dynamic=True)
    for rows in (4, 5, 6):
        close(compiled(T[:rows]), reference(T[:rows], FREQS))
    assert counter.frame_count == 1


def test_there_is_no_graph_break():
    for call in (lambda t: rope(t * 2, FREQS) + 1, lambda t: rotate_half(t * 2) + 1):
        torch._dynamo.reset()
        assert torch._dynamo.explain(call)(T).graph_break_count == 0


def test_what_models_want_compiles_whole():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k: (*rope_qk(q, k, FREQS), rope_(q * 1, FREQS)),
        fullgraph=True,
        backend="aot_eager",
    )
    q, k, copy = compiled(T, T[..., :1, :])
    close((q, k, copy), tuple(reference(x, FREQS) for x in (T, T[..., :1, :], T)))


def loaded():
    """Load the file as the grader does, beside the copy that is loaded already."""
    path = ROOT / "contributors" / "house" / "rope.py"
    spec = importlib.util.spec_from_file_location("solution_rope", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_file_may_be_loaded_twice(monkeypatch):
    """Each copy's operator launches its own kernel, in any order."""
    copies, launched = [first, loaded(), loaded()], []
    for number, module in enumerate(copies):

        def note(*arguments, number=number, launch=module._launch, **options):
            launched.append(number)
            return launch(*arguments, **options)

        monkeypatch.setattr(module, "_launch", note)
    for number in (0, 2, 0, 2):
        torch._dynamo.reset()
        compiled = torch.compile(copies[number].rope, fullgraph=True, backend="aot_eager")
        close(compiled(T, FREQS), reference(T, FREQS))
    assert launched == [0, 2, 0, 2]


@pytest.mark.parametrize("name", ["interleaved", "bshd, starts", "thd"])
def test_torch_func_differentiates(name):
    t, options = CALLS[name]
    upstream = torch.randn_like(t)
    out, grad = expected(t, options, upstream)

    def call(t):
        return rope(t, FREQS, **options)

    close(torch.func.grad(lambda t: (call(t) * upstream).sum())(t), grad)
    close(torch.func.vjp(call, t)[1](upstream)[0], grad)
    close(torch.func.jvp(call, (t,), (t,)), (out, out))
    with forward_ad.dual_level():
        close(forward_ad.unpack_dual(call(forward_ad.make_dual(t, t))).tangent, out)


def test_torch_func_differentiates_rotate_half():
    close(torch.func.jvp(rotate_half, (T,), (2 * T,))[1], 2 * half.reference(T))
    close(torch.func.grad(lambda t: (rotate_half(t) * T).sum())(T), -half.reference(T))


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (lambda t: rope(t, FREQS), "t has a dimension for batches"),
        (rotate_half, "any number of dim"),
    ],
)
def test_vmap_refuses_in_one_line(op, words):
    with pytest.raises(NotImplementedError, match=words) as refused:
        torch.func.vmap(op)(T[None])
    assert "vmap" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("module", "op"), [(first, lambda t: rope(t, FREQS)), (rotating, rotate_half)]
)
def test_no_node_where_no_gradient_is_due(module, op, monkeypatch):
    """Nor is a Function applied, which would take host time to find that out."""
    leaf = T.clone().requires_grad_()
    assert op(leaf).grad_fn is not None
    monkeypatch.setattr(module, "_apply", lambda *_: pytest.fail("a Function was applied"))
    assert op(T).grad_fn is None
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert op(leaf).grad_fn is None and not op(leaf).requires_grad


@pytest.mark.parametrize(
    "op",
    [
        lambda t: rope(t, FREQS),
        lambda t: rope_(t * 1, FREQS),
        lambda t: rope_qk(t, t[..., :1, :].detach(), FREQS)[0],
        lambda t: rope_qk(t[..., :1, :].detach(), t, FREQS)[1],
        lambda t: torch.ops.house.rope(t, FREQS, None, None, "sbhd", False, 1, 0, False),
        rotate_half,
        lambda t: torch.ops.house.rotate_half(t, False, False),
    ],
)
def test_a_gradient_has_a_gradient(op):
    """The map is linear: the gradient of its gradient is the map itself."""
    x, upstream = T.clone().requires_grad_(), torch.randn_like(T, requires_grad=True)
    (grad,) = torch.autograd.grad(op(x), x, upstream, create_graph=True)
    (twice,) = torch.autograd.grad((grad * T).sum(), upstream)
    close(twice, op(T))


def test_a_checkpoint_computes_forward_again():
    def layer(x):
        return rope(2 * x, FREQS).sin()

    gradients = []
    for call in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        x = T.clone().requires_grad_()
        gradients.append(torch.autograd.grad(call(x), x, T)[0])
    close(*gradients)


def test_modified_angles_are_noticed():
    for name, option in (("freqs", None), ("start_positions", STARTS.clone())):
        freqs = FREQS.clone()
        options = {} if option is None else {name: option}
        out = rope(T.clone().requires_grad_(), freqs, **options)
        (freqs if option is None else option).add_(1)
        with pytest.raises(RuntimeError, match="modified before backward"):
            out.sum().backward()
