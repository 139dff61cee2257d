"""What AOTAutograd makes of a call where the kernel is Triton's own: the launch itself.

The driver names an H100 and nothing runs: the compiled function returns memory as it finds it.
"""

from types import SimpleNamespace

import pytest
import torch
import triton
from rope import rope
from rotate_half import rotate_half
from torch._functorch.aot_autograd import aot_module_simplified
from triton.backends.compiler import GPUTarget

FREQS = torch.randn(11, 1, 1, 8, generator=torch.Generator().manual_seed(0))
TARGET = GPUTarget("cuda", 90, 32)


@pytest.fixture
def graphs(monkeypatch):
    """Return a list of graphs, and a backend that adds forward's and backward's to it."""
    driver = SimpleNamespace(get_current_target=lambda: TARGET)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    torch._dynamo.reset()
    seen = []

    def keep(graph, inputs):
        seen.append(graph)
        (outputs,) = graph.graph.find_nodes(op="output")
        return lambda *inputs: [left(node) for node in outputs.args[0]]

    def backend(module, inputs):
        return aot_module_simplified(module, inputs, fw_compiler=keep, bw_compiler=keep)

    return seen, backend


def left(node):
    """Return memory in the place of a node's value."""
    value = None if node is None else node.meta["val"]
    if isinstance(value, torch.Tensor):
        shape = [int(str(size)) if str(size).isdigit() else size.node.hint for size in value.shape]
        return torch.empty(shape, dtype=value.dtype)
    return value if value is None else value.node.hint


@pytest.mark.parametrize("op", [lambda t: rope(t, FREQS), rotate_half])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_compiler_sees_the_launches(graphs, op, dynamic):
    seen, backend = graphs
    compiled = torch.compile(lambda t: op(t * 2), backend=backend, fullgraph=True, dynamic=dynamic)
    compiled(torch.randn(6, 2, 3, 16, requires_grad=True)).sum().backward()
    assert len(seen) == 2
    for graph in seen:
        launches = [node for node in graph.graph.nodes if "triton_kernel_wrapper" in node.name]
        launch = next(node for node in launches if "kernel_idx" in node.kwargs)
        assert len([node for node in launches if "kernel_idx" in node.kwargs]) == 1
        # Inductor copies the tensors that it finds written: the result's alone
        assert launch.kwargs["tensors_to_clone"] in (["out"], ["y"])
        assert "house" not in graph.code, "no operator is left to dispatch"
