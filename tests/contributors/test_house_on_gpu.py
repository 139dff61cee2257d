"""The house on a GPU: every way to launch has one result."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace

import pytest
import torch

from common.paths import CONTRIBUTORS

pytestmark = pytest.mark.slow
HELPERS = ("launch", "launching", "operators", "pairs", "rope", "rotary", "trigonometry")
"""The modules of the house that a test leaves behind."""


@pytest.fixture
def house(monkeypatch):
    """Return the house's modules."""
    monkeypatch.syspath_prepend(str(CONTRIBUTORS / "house"))
    import launch
    import rope
    import rotary

    yield SimpleNamespace(launch=launch, rope=rope.rope, rotary=rotary)
    for name in HELPERS:
        sys.modules.pop(name, None)


def drawn(dice):
    """Return random arguments of rope, of which some t begin at an odd address."""
    s, b, h, d = dice.choice((1, 16, 33)), dice.choice((1, 3)), dice.choice((1, 16)), 64
    dtype = dice.choice((torch.float32, torch.bfloat16))
    whole = torch.randn(s, b, h + 2, d + 1, device="cuda", dtype=dtype)
    t = whole[:, :, dice.choice((0, 1)) :, dice.choice((0, 1)) :][:, :, :h, :d]
    t = t.contiguous() if dice.random() < 0.5 else t
    freqs = torch.randn(64, 1, 1, dice.choice((d, d // 2)), device="cuda")
    starts = torch.randint(9, (b,), device="cuda", dtype=torch.int32)
    return (
        t,
        freqs,
        {"start_positions": dice.choice((None, starts)), "interleaved": dice.random() < 0.5},
    )


@pytest.mark.parametrize("largest", [1, 100, 1e6, 1e30])
def test_cosine_and_sine_err_by_few_units_in_the_last_place(house, largest):
    """t = (1, 0) turned is (cos, sin); above 2**20 the functions are libdevice's."""
    angles = (2 * torch.rand(2**20, device="cuda", dtype=torch.float64) - 1) * largest
    freqs = angles.float()[:, None, None, None].expand(-1, 1, 1, 2)
    t = torch.tensor([1.0, 0.0], device="cuda").expand(2**20, 1, 1, 2)
    turned = house.rope(t, freqs)[:, 0, 0].double()
    truth = torch.stack((freqs[:, 0, 0, 0].double().cos(), freqs[:, 0, 0, 0].double().sin()), -1)
    unit = torch.exp2(truth.abs().clamp(min=2.0**-30).log2().floor() - 23)
    assert ((turned - truth).abs() / unit).max() < 1.75


def test_a_planned_launch_does_as_an_ordinary_one_does(house, monkeypatch):
    dice = random.Random(0)
    for _ in range(60):
        t, freqs, options = drawn(dice)
        with monkeypatch.context() as patch:
            patch.setattr(house.launch, "watched", lambda kernel: True)
            ordinary = house.rope(t, freqs, **options)
        for _ in range(3):  # the first one compiles
            assert torch.equal(house.rope(t, freqs, **options), ordinary)


def test_a_plan_launches_on_the_current_stream(house):
    """The other stream is late: on the default one, t would be read before it is written."""
    t, freqs = torch.zeros(64, 1, 16, 64, device="cuda"), torch.randn(64, 1, 1, 64, device="cuda")
    full = torch.randn_like(t)
    wanted = [house.rope(full, freqs) for _ in range(3)][-1]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        t.copy_(full)
        got = house.rope(t, freqs)
        torch.cuda.current_stream().synchronize()
    assert torch.equal(got, wanted)


def test_a_plan_is_captured_by_a_graph(house):
    t, freqs = torch.zeros(64, 1, 16, 64, device="cuda"), torch.randn(64, 1, 1, 64, device="cuda")
    for _ in range(3):
        house.rope(t, freqs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = house.rope(t, freqs)
    t.normal_()
    graph.replay()
    assert torch.equal(out, house.rope(t, freqs))


def test_angles_of_the_cpu_are_refused(house):
    t, freqs = torch.zeros(64, 1, 16, 64, device="cuda"), torch.randn(64, 1, 1, 64)
    for _ in range(3):
        house.rope(t, freqs.cuda())
    with pytest.raises(ValueError, match="cannot be accessed"):
        house.rope(t, freqs)


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
    """No thread stores before another has loaded: 200 times, on slices of one tensor."""
    freqs = torch.randn(64, 1, 1, 96, device="cuda")
    qkv = torch.randn(64, 2, sum(heads) + 4, 128, device="cuda", dtype=torch.bfloat16)
    q, k, _ = qkv.split((*heads, 4), dim=2)
    wanted = [house.rope(x, freqs, interleaved=interleaved) for x in (q, k)]
    for _ in range(200):
        both = house.rotary.rope_qk(q, k, freqs, interleaved=interleaved)
        copy = qkv.clone()
        turned = house.rotary.rope_(copy[:, :, : heads[0]], freqs, interleaved=interleaved)
        assert torch.equal(both[0], wanted[0]) and torch.equal(both[1], wanted[1])
        assert torch.equal(turned, wanted[0])
        assert torch.equal(copy[:, :, heads[0] :], qkv[:, :, heads[0] :])
