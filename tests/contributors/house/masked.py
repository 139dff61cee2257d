"""The house's masked layers: the forms of their kernels, compilation, masks that change."""

import functools

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from tests.support import masked_layers
from tests.support.masked_layers import FORMS, OPS

TOKENS, WIDTH = 40, 16
LAYERS = [*zip(masked_layers.layers(), OPS, (2, 6), strict=True)]
close = functools.partial(torch.testing.assert_close, atol=1e-3, rtol=1e-3)
every_layer = pytest.mark.parametrize(("layer", "op", "weights"), LAYERS)
CHANGES = {
    "an operation": lambda mask: mask.logical_not_(),
    "a view": lambda mask: mask[10:20].fill_(True),
    "out=": lambda mask: torch.logical_not(mask.clone(), out=mask),
    "data": lambda mask: mask.data.logical_not_(),
    "NumPy": lambda mask: mask.numpy().__ixor__(True),
}


@pytest.mark.parametrize(("form", "dtype", "some"), FORMS)
def test_output_and_gradients_are_right_in_each_form(form, dtype, some):
    masked_layers.require_small_errors(form, dtype, some)


def test_compiled_layers_sort_a_mask_once_for_both_directions():
    torch._dynamo.reset()
    operators = []

    def note(graph, _):
        operators.extend(getattr(node.target, "_opname", "") for node in graph.graph.nodes)
        return graph

    # the partition of Inductor, which merges equal calls
    how = {"fw_compiler": note, "bw_compiler": note}
    backend = aot_autograd(**how, partition_fn=min_cut_rematerialization_partition)
    first, second = masked_layers.layers()
    tensors, mask = drawn(2)

    def model(x, v, t, mask):
        return second(first(x, v, t, mask), v, v, v, t, t, t, mask)

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.autograd.grad(compiled(*tensors, mask).sum(), tensors)
    assert [operators.count(f"{each.OP.name}_backward") for each in OPS] == [1, 1]
    assert operators.count("masked_sort") == 1


def drawn(weights):
    """Return the tensors of a layer, and a mask."""
    shapes = [(TOKENS, WIDTH), *[(WIDTH, WIDTH)] * weights]
    return [torch.randn(shape, requires_grad=True) for shape in shapes], torch.arange(TOKENS) < 13


@every_layer
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_mask_is_seen(layer, op, weights, change):
    """Torch counts the first ones; another shows in a view, or after the version is raised."""
    tensors, mask = drawn(weights)
    layer(*tensors, mask)
    CHANGES[change](mask)
    wanted = op.reference(*tensors, mask)
    close(layer(*tensors, mask.view_as(mask)), wanted)
    if change in ("data", "NumPy"):
        torch.autograd.graph.increment_version(mask)
    close(layer(*tensors, mask), wanted)


@every_layer
def test_backward_takes_the_mask_as_forward_had_it(layer, op, weights):
    tensors, mask = drawn(weights)
    wanted = torch.autograd.grad(op.reference(*tensors, mask.clone()).square().sum(), tensors)
    out = layer(*tensors, mask)
    mask.logical_not_()
    close(torch.autograd.grad(out.square().sum(), tensors), wanted)
