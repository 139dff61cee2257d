"""The oracle in pieces, results compared in chunks, and a harness that spares a GPU's memory."""

import math

import pytest
import torch

from common import ops
from common.grading import oracle, tolerance
from common.grading.device import CONTEXT, IDLE, DeviceMemory
from common.grading.sweep import Sweep
from common.grading.tolerance import budget_of, check_values
from common.ops._draw import draw
from common.paths import ROOT
from common.solutions import Solution
from tests.support.workers import CHOOSE, chosen, written

# a single row has no slices along its first dimension: it is its features
SEVERAL = [(op, case) for op in map(ops.load, ops.names()) for case in op.cases("smoke")
           if not case.far_bytes and len(next(iter(op.outputs(case).values()))) > 1]  # fmt: skip


@pytest.mark.parametrize(("op", "case"), SEVERAL[::3], ids=lambda each: each.name)
def test_pieces_make_the_whole(op, case, monkeypatch):
    """Sums over the pieces differ in the last bits of float64 alone."""
    gradients = "backward" in case.directions
    drawn = draw(op, case, 1, "cpu")
    whole = oracle.truth(op, *drawn, gradients)
    monkeypatch.setattr(oracle, "PIECE", 1)
    pieces = oracle.truth(op, *drawn, gradients)
    assert whole.keys() == pieces.keys()
    for name, expected in whole.items():
        torch.testing.assert_close(
            pieces[name], expected, rtol=1e-12, atol=1e-12 * float(expected.abs().max())
            if expected.numel() else 0.0, equal_nan=True,
        )  # fmt: skip


# --- chunks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [1.0, 9.0, math.nan])
def test_a_comparison_in_chunks_finds_the_same(monkeypatch, wrong):
    truth = torch.linspace(1, 2, 2000, dtype=torch.float64).view(40, 50)
    actual, eager = truth.float().t().contiguous().t(), (truth + 1e-6 * truth.sin()).float()
    actual[14, 1] *= wrong
    whole = check_values(actual, truth, budget_of(eager, truth), 4.0)
    monkeypatch.setattr(tolerance, "CHUNK", 300)
    parts = check_values(actual, truth, budget_of(eager, truth), 4.0)
    assert repr(parts[0]) == repr(whole[0])  # a NaN differs from itself
    assert (parts[0] is None) == (wrong == 1)
    assert parts[1] == pytest.approx(whole[1], rel=1e-12, nan_ok=True)


# --- low-memory -----------------------------------------------------------------------------------

HALF = """
import torch

calls = 0

def one_ulp_off(out, times):
    return out + times * (torch.nextafter(out, out + 1) - out).detach()

def rotate_half(x, *, interleaved=False):
    global calls
    calls += 1
    if interleaved:
        raise NotImplementedError("interleaved")
    a, b = x.chunk(2, -1)
    {line}
"""


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("return torch.cat((-b, a), -1)", "PASSED"),
        ("return torch.cat((b, a), -1)", "INCORRECT_NUMERICAL"),
        ("return one_ulp_off(torch.cat((-b, a), -1), calls % 2)", "NONDETERMINISTIC"),
        ("out = torch.cat((-b, a), -1); return out + 0 * x.detach().add_(1)", "MUTATED_INPUT"),
        ("out = torch.empty_like(x); return out + 0 * x", "UNWRITTEN_OUTPUT"),
    ],
)
def test_a_frugal_harness_finds_what_others_find(tmp_path, fork_server, line, verdict):
    """Each attempt writes over the results of the one before, which were copied to the host."""
    solution = written(tmp_path, HALF.format(line=line))
    op = ops.load("rotate_half")
    every = [case for case in op.cases("smoke") if case.shape == (7, 130)]
    cases = [case for case in every if case.dtype == "float32"]
    memory = DeviceMemory(lambda: IDLE + CONTEXT)
    with Sweep("cpu", server=fork_server, memory=memory) as sweep:
        for _ in range(3):
            for graded in sweep.grade(op, cases, [solution], repeats=2):
                assert graded.problem.scarce
                found = {each.verdict for each in graded.verdicts.values()}
                if graded.case.interleaved:
                    assert found == {"UNSUPPORTED"}
                else:
                    assert graded.verdicts["forward"].verdict == verdict


def test_a_frugal_harness_asks_other_inputs_too(fork_server, monkeypatch):
    """One call after the other, so that a replayed result is a wrong one."""
    monkeypatch.setattr(CHOOSE, chosen(interleaved=True))
    op = ops.load("rotate_half")
    cases = [next(op.cases("smoke"))]
    path = ROOT / "tests/corpus/cheats/replays_by_pointer/rotate_half.py"
    replays = Solution(path, op.name)
    with Sweep("cpu", server=fork_server, memory=DeviceMemory(lambda: IDLE + CONTEXT)) as sweep:
        found = [graded.verdicts["forward"].verdict for graded in sweep.grade(op, cases, [replays])]
    assert found == ["TAMPERED"]
