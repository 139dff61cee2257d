"""The house on a GPU: compilation, CUDA graphs, launches in place, the forms of a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from triton import knobs
from triton.runtime.jit import JITFunction

from common.paths import CONTRIBUTORS
from tests.support import masked_layers
from tests.support.masked_layers import FORMS

pytestmark = pytest.mark.slow
HOUSE = CONTRIBUTORS / "house"


@pytest.fixture(scope="module", autouse=True)
def house():
    """Return the package `fast`, for as long as the house's folder is on `sys.path`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HOUSE))
        # as torch's NVSHMEM sets it: Triton writes the constants of each kernel as JSON for a hook
        patch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **_: None)
        import fast

        yield fast
    torch._dynamo.reset()  # ends the CUDA graphs too
    for name, module in [*sys.modules.items()]:
        if Path(getattr(module, "__file__", None) or "").is_relative_to(HOUSE):
            del sys.modules[name]


@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_launches_the_kernel(house, dynamic):
    torch._dynamo.reset()
    freqs = torch.randn(64, 1, 1, 64, device="cuda")
    compiled = torch.compile(lambda t: house.rope(t, freqs), fullgraph=True, dynamic=dynamic)
    for rows in (64, 48):
        t = torch.randn(rows, 2, 16, 64, device="cuda", requires_grad=True)
        upstream = torch.randn_like(t)
        got, wanted = compiled(t), house.rope(t, freqs)
        assert torch.equal(got, wanted)
        assert torch.equal(*(torch.autograd.grad(out, t, upstream)[0] for out in (got, wanted)))


@pytest.mark.parametrize("heads", [(32, 8), (3, 1)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_in_place_and_both_in_one_launch(house, heads, interleaved):
    """No thread stores before another has loaded: the same bits 200 times, on slices of a tensor.

    Of one head and of another launch the compiler fuses one product with the sum, or the other.
    """
    freqs = torch.randn(64, 1, 1, 96, device="cuda")
    qkv = torch.randn(64, 2, sum(heads) + 4, 128, device="cuda", dtype=torch.bfloat16)
    q, k, _ = qkv.split((*heads, 4), dim=2)

    def turned():
        copy = qkv.clone()
        q_, *rest = copy.split((heads[0], heads[1] + 4), dim=2)
        both = house.rope_qk(q, k, freqs, interleaved=interleaved)
        return *both, house.rope_(q_, freqs, interleaved=interleaved), *rest

    first = turned()
    wanted = [house.rope(x, freqs, interleaved=interleaved) for x in (q, k, q)]
    torch.testing.assert_close(first, (*wanted, qkv[:, :, heads[0] :]), rtol=2**-7, atol=1e-6)
    for _ in range(200):
        assert all(map(torch.equal, turned(), first))


@pytest.mark.parametrize("how", ["tensors of their own", "slices of one", "one tensor twice"])
def test_a_known_launch_takes_other_addresses(house, how, monkeypatch):
    """As an ordinary launch takes them; the first call records for each way to pass tensors."""
    from fast import launch

    freqs = torch.randn(64, 1, 1, 64, device="cuda")
    kept = []  # no memory is given twice
    for _ in range(4):
        tokens = torch.randn(256, 1024, device="cuda").to(torch.bfloat16)
        linear, gated = masked_layers.weights(1024, 512, torch.bfloat16)
        qkv, others = torch.randn(2, 64, 2, 8, 64, device="cuda").unbind()
        q, k = qkv[:, :, :4], (others if how == "tensors of their own" else qkv)[:, :, 4:]
        k = q if how == "one tensor twice" else k
        found = []
        for replays in (launch.replays, lambda: False):
            monkeypatch.setattr(launch, "replays", replays)
            found.append([
                *house.rope_qk(q, k, freqs),
                house.rope_(qkv.clone()[:, :, :4], freqs),
                house.masked_linear(tokens, *linear, tokens[:, 0] > 0),
                house.masked_ffn(tokens, *gated, tokens[:, 0] > 0),
            ])  # fmt: skip
            monkeypatch.undo()
        assert all(map(torch.equal, *found))
        kept += [tokens, linear, gated, qkv, others, found]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second GPU")
def test_launches_follow_their_tensors(house):
    """They go to the second GPU while the first one is current, in autograd's threads too."""
    drawn = [torch.randn(64, 1, 1, 64), torch.randn(64, 2, 4, 64), torch.randn(64, 2, 2, 64)]
    drawn += [
        torch.randn(256, 128),
        *(each.cpu() for each in masked_layers.weights(128, 128, torch.float32)[1]),
    ]
    found = []
    for device in ("cuda:0", "cuda:1", "cuda:1"):
        freqs, *leaves = (each.to(device) for each in drawn)
        q, k, x, *gated = (each.requires_grad_() for each in leaves)
        mask = x[:, 0] > 0
        linear = house.masked_linear(x, *gated[::5], mask)
        outs = *house.rope_qk(q, k, freqs), linear, house.masked_ffn(x, *gated, mask)
        gradients = torch.autograd.grad(outs, [q, k, x, *gated], [each.cos() for each in outs])
        found.append([each.detach().cpu() for each in (*outs, *gradients)])
    assert all(
        torch.equal(*each) for other in found[1:] for each in zip(found[0], other, strict=True)
    )


# --- the masked layers ----------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "dtype", "some"), FORMS)
def test_output_and_gradients_are_right_in_each_form(form, dtype, some):
    masked_layers.require_small_errors(form, dtype, some)


@pytest.mark.parametrize(
    ("tokens", "width", "inner"),
    [
        (9, 64, 72),  # the form of a small op
        (130, 1024, 1024),  # tiles of 64 rows
        (2048, 1000, 1032),  # columns that end amid a block
        (16384, 256, 512),  # tiles of 128 rows
        (2000, 256, 8192),  # a packed x, and sums by kind
    ],
)
@pytest.mark.parametrize("name", ["0.02 of all", "0.5 of all", "one span", "nine spans"])
def test_a_gpu_is_right_in_the_form_of_each_size(tokens, width, inner, name):
    x = torch.randn(tokens, width, device="cuda").to(torch.bfloat16)
    x = x.T.contiguous().T if name == "nine spans" else x
    found = masked_layers.errors(x, inner, masked_layers.masks(tokens)[name])
    assert max(found.values()) <= masked_layers.BOUND["bfloat16"], found


def test_a_new_length_compiles_nothing(house, monkeypatch):
    """From the fourth one on, of 1,500 to 2,600 tokens: three have all kernels of these."""
    drawn, _ = masked_layers.weights(1024, 1024, torch.bfloat16)

    def train(tokens):
        x = torch.randn(tokens, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.autograd.grad(house.masked_linear(x, *drawn, x[:, 0] > 0).sum(), [x, *drawn])

    drawn = [each.requires_grad_() for each in drawn]
    for tokens in (2600, 1501, 1984):
        train(tokens)
    monkeypatch.setattr(JITFunction, "_do_compile", lambda *_: pytest.fail("a kernel is compiled"))
    for tokens in range(1500, 2600, 137):
        train(tokens)


def test_cuda_graphs_of_torch_compile_follow_a_mask_that_changes():
    torch._dynamo.reset()
    x = torch.randn(4096, 512, device="cuda").to(torch.bfloat16)
    mask = torch.rand(4096, device="cuda") < 0.4
    drawn = masked_layers.weights(512, 512, torch.bfloat16)
    leaves = [w.requires_grad_() for each in drawn for w in each]

    def model(x, mask):
        for layer, each in zip(masked_layers.layers(), drawn, strict=True):
            x = x + layer(torch.nn.functional.layer_norm(x, x.shape[-1:]), *each, mask)
        return x

    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for _ in range(6):
        mask.copy_(mask.roll(37))
        torch.compiler.cudagraph_mark_step_begin()
        wanted, got = (torch.autograd.grad(run(x, mask).square().mean(), leaves)
                       for run in (model, compiled))  # fmt: skip
        for one, other in zip(wanted, got, strict=True):
            assert (one - other).norm() <= 2e-2 * one.norm()
