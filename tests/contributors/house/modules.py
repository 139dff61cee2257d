"""`MaskedLinear` and `MaskedFFN` beside pairs of plain layers."""

import pytest
import torch
from fast import MaskedFFN, MaskedLinear
from torch import nn

B, S, WIDTH, INNER = 2, 20, 24, 40
MASK = torch.arange(B * S).view(B, S) % 3 == 0


class Plain(nn.Module):
    """Llama's feed-forward layer, as transformers has it."""

    def __init__(self, *_, **how):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, **how) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, **how)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize(("ours", "theirs"), [(MaskedLinear, nn.Linear), (MaskedFFN, Plain)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", [MASK, MASK.flatten()], ids=["batched", "flat"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_module_is_two_plain_ones(ours, theirs, bias, mask, compiled):
    """Their state dicts are its own, and outputs and gradients of all parameters are theirs."""
    torch._dynamo.reset()
    layer, pair = ours(WIDTH, INNER, bias=bias), [theirs(WIDTH, INNER, bias=bias) for _ in "vt"]
    for kind, each in zip((layer.visual, layer.textual), pair, strict=True):
        kind.load_state_dict(each.state_dict())
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    x = torch.randn(B, S, WIDTH, requires_grad=True)
    got, wanted = run(x, mask), torch.where(MASK[..., None], *(each(x) for each in pair))
    both = nn.ModuleDict({"visual": pair[0], "textual": pair[1]})
    upstream, results = torch.randn_like(wanted), []
    for module, out in ((layer, got), (both, wanted)):
        leaves = {"x": x, **dict(module.named_parameters())}
        grads = torch.autograd.grad(out, list(leaves.values()), upstream)
        results.append({"out": out, **dict(zip(leaves, grads, strict=True))})
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [MaskedLinear, MaskedFFN])
def test_parameters_are_as_asked_for_and_a_mask_of_fewer_tokens_is_refused(make):
    layer = make(WIDTH, INNER, device="meta", dtype=torch.bfloat16)
    kinds = {(each.device.type, each.dtype) for each in layer.parameters()}
    assert kinds == {("meta", torch.bfloat16)}
    with pytest.raises(ValueError, match="mask has"):
        make(WIDTH, INNER)(torch.randn(B, S, WIDTH), MASK[:1])


@pytest.mark.parametrize(("ours", "theirs"), [(MaskedLinear, nn.Linear), (MaskedFFN, Plain)])
@pytest.mark.parametrize("bias", [False, True])
def test_autocast_gives_the_dtype_of_a_plain_layer(ours, theirs, bias):
    x = torch.randn(B, S, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        outs = [ours(WIDTH, INNER, bias=bias)(x, MASK), theirs(WIDTH, INNER, bias=bias)(x)]
    assert outs[0].dtype == outs[1].dtype == torch.bfloat16
