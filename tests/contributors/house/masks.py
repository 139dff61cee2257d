"""Which changes of a mask in place the masked layers see, and what makes them see the others."""

import pytest
import torch
from masked_ffn import masked_ffn
from masked_linear import masked_linear

from common.ops import masked_ffn as ffn
from common.ops import masked_linear as linear

DICE = torch.Generator().manual_seed(0)
TOKENS, WIDTH = 40, 16
LAYERS = [(masked_linear, linear.reference, 2), (masked_ffn, ffn.reference, 6)]
COUNTED = {
    "an operation": lambda mask: mask.logical_not_(),
    "a view": lambda mask: mask[10:20].fill_(True),
    "detach": lambda mask: mask.detach().logical_not_(),
    "out=": lambda mask: torch.logical_not(mask.clone(), out=mask),
    "many at once": lambda mask: torch._foreach_copy_([mask], [~mask]),
}
UNCOUNTED = {
    "data": lambda mask: mask.data.logical_not_(),
    "NumPy": lambda mask: mask.numpy().__ixor__(True),
    "DLPack": lambda mask: torch.from_dlpack(mask).logical_not_(),
}


def layer(op, weights):
    """Return tensors of a layer, and a mask."""
    tensors = [torch.randn(TOKENS, WIDTH, generator=DICE)]
    tensors += [torch.randn(WIDTH, WIDTH, generator=DICE) for _ in range(weights)]
    return [each.requires_grad_() for each in tensors], torch.arange(TOKENS) % 3 == 0


def close(got, wanted):
    torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("op", "reference", "weights"), LAYERS)
@pytest.mark.parametrize("change", COUNTED)
def test_a_change_that_torch_counts_is_seen(op, reference, weights, change):
    tensors, mask = layer(op, weights)
    op(*tensors, mask)
    before = mask.clone()
    COUNTED[change](mask)
    assert not torch.equal(mask, before)
    close(op(*tensors, mask), reference(*tensors, mask))


@pytest.mark.parametrize(("op", "reference", "weights"), LAYERS)
@pytest.mark.parametrize("change", UNCOUNTED)
@pytest.mark.parametrize("told", ["a view", "a version"])
def test_another_change_is_seen_by_a_view_or_a_higher_version(op, reference, weights, change, told):
    tensors, mask = layer(op, weights)
    op(*tensors, mask)
    UNCOUNTED[change](mask)
    if told == "a view":
        mask = mask.view_as(mask)
    else:
        torch.autograd.graph.increment_version(mask)
    close(op(*tensors, mask), reference(*tensors, mask))


@pytest.mark.parametrize(("op", "reference", "weights"), LAYERS)
def test_backward_takes_the_mask_as_forward_had_it(op, reference, weights):
    tensors, mask = layer(op, weights)
    wanted = torch.autograd.grad(reference(*tensors, mask.clone()).square().sum(), tensors)
    out = op(*tensors, mask)
    mask.logical_not_()
    op(*tensors, mask)
    close(torch.autograd.grad(out.square().sum(), tensors), wanted)
