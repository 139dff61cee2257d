"""A second and a double backward of a kept graph: what they get wrong is a note, no verdict."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from common.draws import Draws
from common.gradients import second_derivatives
from common.grading.call_plan import GRAPH_EVERY, GRAPHS, choose
from common.grading.problem import make_problem
from common.grading.remarks import OTHER_GRADIENTS, OTHER_SECOND_DERIVATIVES
from common.grading.sweep import Sweep, eager_of
from common.records.lines import headings
from tests.support.workers import (
    AS_IT_IS,
    CASES,
    CHOOSE,
    MASKED,
    SAVES,
    chosen,
    verdicts_of,
    written,
)  # fmt: skip

EAGER = eager_of(MASKED)
OVERWRITES = SAVES.replace(
    "ctx.save_for_backward(x, w_v, w_t, mask[:, None])",
    "ctx.kept = x.clone(); ctx.save_for_backward(w_v, w_t, mask[:, None])",
).replace(
    "x, w_v, w_t, mask = ctx.saved_tensors", "x, (w_v, w_t, mask) = ctx.kept, ctx.saved_tensors"
)
ONCE = SAVES.replace("import torch\n", "import torch\nfrom torch.autograd.function import *\n", 1)
ONCE = ONCE.replace(
    "    @staticmethod\n    def backward",
    "    @staticmethod\n    @once_differentiable\n    def backward",
)
ENDS = "return d_x, d_v, d_t * {factor}, None"


def ending(source, line):
    """The source with a line before backward's last."""
    return source.replace(ENDS, f"{line}\n        {ENDS}")


LOST = ("x", "w_v", "w_t")
SOURCES = {
    "right": (SAVES, set()),
    "overwritten": (ending(OVERWRITES, "x.zero_()"), {f"{OTHER_GRADIENTS}: of w_v, w_t"}),
    "swapped": (
        ending(SAVES, "ctx.turn = -getattr(ctx, 'turn', -1); d_x = d_x * ctx.turn"),
        {f"{OTHER_GRADIENTS}: of x"},
    ),
    "freed": (ending(OVERWRITES, "del ctx.kept"), set()),
    "detached": (
        ending(SAVES, "d_x, d_v, d_t = d_x.detach(), d_v.detach(), d_t.detach()"),
        {f"{OTHER_SECOND_DERIVATIVES}: of x, w_v, w_t"},
    ),
    "detached in part": (
        SAVES.replace("(grad * mask).T @ x", "(grad * mask).T @ x.detach()"),
        {f"{OTHER_SECOND_DERIVATIVES}: of x"},
    ),
    "once differentiable": (ONCE, {f"{OTHER_SECOND_DERIVATIVES}: of x, w_v, w_t"}),
    "refused": (
        SAVES.replace("{before}", "if torch.is_grad_enabled(): raise ValueError('once')"),
        set(),
    ),
    "refused at the end of the process": (
        SAVES.replace("{before}", "if torch.is_grad_enabled(): __import__('os').abort()"),
        set(),
    ),
}


@pytest.fixture
def verdicts(tmp_path, fork_server, monkeypatch):
    """Return a function from the source of a masked_linear, and choices, to its verdicts."""
    return partial(verdicts_of, fork_server, tmp_path, monkeypatch, keeps_graph=True)


def told(verdict):
    """The notes that a kept graph gives."""
    return {
        note
        for note in verdict.notes
        if headings([note])[0] in (OTHER_GRADIENTS, OTHER_SECOND_DERIVATIVES)
    }


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_what_a_kept_graph_gets_wrong_without_an_error_is_noted(verdicts, name, interleaved):
    source, notes = SOURCES[name]
    found = verdicts(source.format(**AS_IT_IS), interleaved=interleaved)
    assert [verdict.verdict for verdict in found.values()] == ["PASSED", "PASSED"], found
    assert told(found["backward"]) == notes
    assert not told(found["forward"])


def test_a_further_mode_is_graded_after_a_kept_graph_as_without(verdicts):
    source = SOURCES["overwritten"][0].format(**AS_IT_IS | {"first": "x.requires_grad or 1 / 0"})
    found = verdicts(source, mode=3)
    assert found["forward"].verdict == "RUNTIME_ERROR"
    assert "where only w_v, w_t take a gradient" in found["forward"].reason


@pytest.mark.slow
def test_no_right_solution_gets_a_note_in_any_smoke_case(tmp_path, fork_server, monkeypatch):
    """Sums in float32 round otherwise than eager's, also in tensors of few elements."""
    monkeypatch.setattr(CHOOSE, chosen(keeps_graph=True))
    source = SAVES.format(**AS_IT_IS).replace(
        "x @ w_t.T", "(x.float() @ w_t.T.float()).to(x.dtype)"
    )
    source = source.replace("grad @ w_v", "(grad.float() @ w_v.float()).to(x.dtype)")
    solution = written(tmp_path, source, "masked_linear")
    with Sweep("cpu", server=fork_server) as sweep:
        found = list(sweep.grade(MASKED, CASES.values(), [solution]))
    assert len(found) == len(CASES)
    verdicts = [verdict for graded in found for verdict in graded.verdicts.values()]
    assert not {(verdict.case, note) for verdict in verdicts for note in told(verdict)}


@pytest.mark.parametrize(("constant", "factor"), [(False, 15), (True, 6)])
def test_second_derivatives_are_of_the_gradients_times_the_inputs(constant, factor):
    """With y = x³: of 3 x² (w y) it is 15 w x⁴, and of 3 x² w it is 6 w x."""
    x, weight = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, -1.0])
    (second,) = second_derivatives(x**3, [x], weight, constant)
    assert torch.equal(second, factor * weight * x.detach() ** (2 if constant else 5))


@pytest.mark.parametrize("tier", ["smoke", "board"])
@pytest.mark.parametrize("seed", range(5))
def test_a_run_keeps_a_few_graphs(tier, seed):
    cases = list(MASKED.tier(tier, "cpu"))
    draws = Draws(seed, tuple((case.name, case.group) for case in cases))
    every = [choose(make_problem(MASKED, case, draws, "cpu"), EAGER) for case in cases]
    kept = sum(choices.keeps_graph for choices in every)
    assert min(GRAPHS, len(cases) // 2) <= kept + 1 <= max(len(cases) // GRAPH_EVERY, GRAPHS) + 2
