"""A kernel in what torch.compile compiles: it runs outside of graphs where there is no GPU."""

import pytest

from common import ops
from common.errors import IN_A_GRAPH
from common.paths import ROOT

HALF = ops.load("rotate_half")
CASES = [case for case in HALF.cases("smoke") if not case.far_bytes and not case.interleaved][:3]
AROUND = (ROOT / "tests/corpus/honest/compiled_around_a_kernel/rotate_half.py").read_text()
TUNED = AROUND.replace(
    "@triton.jit", "@triton.autotune([triton.Config({}), triton.Config({})], ['d'])\n@triton.jit"
)
HINT = "@triton.heuristics({'BLOCK': lambda of: triton.next_power_of_2(of['d'])})\n@triton.jit"
BY_HINTS = AROUND.replace(", triton.next_power_of_2(d // 2))", ")").replace("@triton.jit", HINT)

DONATED = """import torch

@torch.compile(backend="aot_eager", dynamic=True)
def turn(x, one):
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-x2, x1), -1) * torch.mm(one, one)

def rotate_half(x):
    out, again = (turn(x, x.new_ones(1, 1)) for _ in range(2))
    if x.requires_grad:  # the first backward decides whether its buffers are given away
        torch.autograd.grad(again, x, torch.ones_like(x))
    return out
"""


@pytest.fixture
def found(graded_source):
    """Return verdicts with their reasons."""

    def grade(source):
        graded = graded_source(HALF, CASES, source)
        assert len(graded) == len(CASES)
        return {(v.verdict, v.reason) for each in graded for v in each.verdicts.values()}

    return grade


@pytest.mark.parametrize("source", [TUNED, BY_HINTS])
@pytest.mark.slow
def test_a_graph_breaks_at_a_launch(found, source):
    assert found(source) == {("PASSED", "")}


@pytest.mark.slow
def test_a_whole_graph_is_unsupported(found):
    whole = AROUND.replace('(backend="aot_eager"', '(fullgraph=True, backend="aot_eager"')
    assert found(whole) == {("UNSUPPORTED", IN_A_GRAPH)}


@pytest.mark.slow
def test_a_compiled_backward_keeps_its_graph_after_one_that_did_not(found):
    assert found(DONATED) == {("PASSED", "")}
