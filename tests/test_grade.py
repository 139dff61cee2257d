"""The numeric rule, each of its clauses by itself, and the order of verdicts."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.arena import Arena
from common.grading.exchange import Exchange
from common.grading.grade import _stayed
from common.grading.problem import OUTPUT, Problem, make_problem, solve
from common.grading.sweep import Sweep
from common.grading.tolerance import Budget, check_values, ulp
from common.ops._draw import draw
from common.solutions import Solution
from common.wire import GUARDS

ROPE = ops.load("rope")
CASES = {case.name: case for case in ROPE.cases("smoke")}
CASE = CASES["sbhd-7x2x3x16-float32"]
LARGE = torch.linspace(-2, 2, 2000, dtype=torch.float64)
BUDGET = Budget(rms=1e-3, largest=4e-3)


def wrong(error, truth=LARGE, budget=BUDGET, slack=2.0, dtype=torch.float32):
    return check_values((truth + error).to(dtype), truth, budget, slack)


def spread(rms: float) -> torch.Tensor:
    """An error of this rms, of one size everywhere and either sign."""
    return rms * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(1000)


def test_eagers_own_error_passes():
    found, ratio = wrong(spread(1e-3))
    assert found is None
    assert ratio == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(("slack", "passes"), [(2.0, 1.9), (4.0, 3.9)])
def test_rms_error_may_be_slack_times_eagers(slack, passes):
    assert wrong(spread(passes * 1e-3), slack=slack)[0] is None
    found, ratio = wrong(spread(1.1 * slack * 1e-3), slack=slack)
    assert "rms" in found.text
    assert ratio == pytest.approx(1.1 * slack, rel=1e-3)


def test_rms_is_not_asked_of_few_elements():
    few = Budget(rms=None, largest=4e-3)
    assert wrong(spread(3e-3), budget=few)[0] is None


def test_one_element_may_err_twice_slack_times_eagers_largest():
    error = torch.zeros(2000, dtype=torch.float64)
    error[1234] = 2 * 2 * 4e-3 * 0.99
    assert wrong(error, budget=Budget(None, 4e-3))[0] is None
    error[1234] *= 1.03
    found, _ = wrong(error, budget=Budget(None, 4e-3))
    assert found.index == (1234,)
    assert "1 of 2000 wrong" in found.text


def test_one_ulp_is_always_allowed():
    truth = torch.tensor([1.0, 0.3, 100.0, 1e-30], dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        up = torch.nextafter(truth.to(dtype), torch.full((4,), torch.inf, dtype=dtype))
        exact = truth.to(dtype).double()
        assert torch.equal(ulp(exact, dtype)[:3], (up.double() - exact)[:3])
        assert check_values(up, exact, Budget(None, 0.0), 2.0)[0] is None
        twice = torch.nextafter(up, torch.full((4,), torch.inf, dtype=dtype))
        assert check_values(twice, exact, Budget(None, 0.0), 2.0)[0] is not None


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rms", [1e6, None])
def test_nothing_infinite_passes(value, rms):
    error = torch.zeros(2000, dtype=torch.float64)
    error[7] = value
    found, _ = wrong(error, budget=Budget(rms=rms, largest=1e9))
    assert found.index == (7,)


def test_exactly_eager_is_exactly_one():
    assert check_values(LARGE.float(), LARGE.float().double(), Budget(0.0, 0.0), 2.0) == (None, 1.0)


def test_the_first_wrong_element_is_told_with_what_came():
    error = torch.zeros(20, 100, dtype=torch.float64)
    error[3, 5] = error[4, 1] = 1.0
    found, _ = check_values((LARGE.view(20, 100) + error).float(), LARGE.view(20, 100), BUDGET, 2.0)
    assert found.index == (3, 5)
    assert found.text.startswith("expected -1.3896948, got -0.38969484 (2 of 2000 wrong")


def test_seeds_decide_the_inputs_and_nothing_else_does():
    first, again = draw(ROPE, CASE, 1, "cpu"), draw(ROPE, CASE, 1, "cpu")
    other = draw(ROPE, CASE, 2, "cpu")
    assert torch.equal(first[0]["t"], again[0]["t"])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0]["t"], other[0]["t"])
    assert not torch.equal(first[1], other[1])


def test_the_oracle_is_in_float64_freqs_too():
    arguments, upstream = draw(ROPE, CASE, 1, "cpu")
    truth = solve(ROPE, arguments, upstream, double=True)
    assert {tensor.dtype for tensor in truth.values()} == {torch.float64}
    doubled = arguments | {"t": arguments["t"].double(), "freqs": arguments["freqs"].double()}
    assert torch.equal(truth[OUTPUT], ROPE.reference(**doubled))
    # the angles rounded to float32 before their cosine would be another truth
    assert not torch.equal(truth[OUTPUT].float(), ROPE.reference(**arguments))


def test_few_elements_get_the_largest_error_of_eight_draws():
    one = Problem(ROPE, CASE, *draw(ROPE, CASE, 5, "cpu"), truth={}, budgets={})
    eager = solve(ROPE, one.arguments, one.upstream)[OUTPUT].double()
    lucky = (eager - solve(ROPE, one.arguments, one.upstream, True)[OUTPUT]).abs().max().item()
    budgets = [make_problem(ROPE, CASE, seed, "cpu").budgets[OUTPUT] for seed in (5, 6)]
    assert budgets[0].rms is None
    assert budgets[0].largest > lucky or budgets[1].largest > lucky
    assert min(budget.largest for budget in budgets) >= lucky / 2


def test_upstream_gradients_are_views_where_the_inputs_are():
    contiguous = make_problem(ROPE, CASE, 0, "cpu").upstream
    view = make_problem(ROPE, CASES["sbhd-5x2x3x12-float32-d2=8-strided"], 0, "cpu").upstream
    assert contiguous.is_contiguous()
    assert not view.is_contiguous()


# --- the order of verdicts, on solutions with two faults ---

FAULTS = {
    "mutated before wrong": ("t.mul_(2); return t.clone()", "MUTATED_INPUT"),
    "shape before dtype": ("return t.double()[0]", "INCORRECT_SHAPE"),
    "dtype before values": ("return t.double() + 1", "INCORRECT_DTYPE"),
    "unwritten before wrong": ("return torch.empty_like(t) * 2", "UNWRITTEN_OUTPUT"),
    "unwritten before random": (
        "o = torch.rand_like(t); o[0] = torch.empty_like(t[0]); return o",
        "UNWRITTEN_OUTPUT",
    ),
    "wrong before random": ("return torch.rand_like(t)", "INCORRECT_NUMERICAL"),
    "a number that was there before": (
        "return t.new_empty(t.shape).masked_fill(t > 9e9, 0)",
        "UNWRITTEN_OUTPUT",
    ),
    "empty_permuted": (
        "return torch.empty_permuted(t.shape, (0, 1, 2, 3), dtype=t.dtype)",
        "UNWRITTEN_OUTPUT",
    ),
    "new_empty_strided": (
        "return t.new_empty_strided(t.shape, t.stride())",
        "UNWRITTEN_OUTPUT",
    ),
    "resize_": ("return torch.zeros(1).resize_(t.shape)", "UNWRITTEN_OUTPUT"),
    "integers read as numbers": (
        "return torch.empty(4 * t.numel(), dtype=torch.uint8).view(t.dtype).view(t.shape)",
        "UNWRITTEN_OUTPUT",
    ),
    "freqs changed": ("freqs.mul_(2); return t.clone()", "MUTATED_INPUT"),
    "freqs changed behind what is used": ("freqs[-1] = 9; return t.clone()", "MUTATED_INPUT"),
    "torch does not take the dtype": ("return torch.zeros(3).int().softmax(0)", "RUNTIME_ERROR"),
    "another device": ("return torch.empty(t.shape, device='meta')", "RUNTIME_ERROR"),
    "sys.exit": ("import sys; sys.exit(0)", "RUNTIME_ERROR"),
    "a text that is none": ("raise ValueError('\\ud800\\x1b[31m')", "RUNTIME_ERROR"),
    "no tensor": ("return None", "INCORRECT_SHAPE"),
    "unsupported": ("raise NotImplementedError('later')", "UNSUPPORTED"),
    "raises": ("raise ValueError('two\\nlines')", "RUNTIME_ERROR"),
}


@pytest.fixture(scope="module")
def two_faults(tmp_path_factory):
    """The forward verdict of each of FAULTS, by its name."""
    root = tmp_path_factory.mktemp("faults")
    solutions = {}
    for index, (name, (body, _)) in enumerate(FAULTS.items()):
        path = root / f"fault{index}" / "rope.py"
        path.parent.mkdir()
        path.write_text(
            f"import torch\n\ndef rope(t, freqs):\n    with torch.no_grad():\n        {body}\n"
        )
        solutions[Solution(path, "rope")] = name
    with Sweep("cpu") as sweep:
        graded = sweep.grade(ROPE, [CASE], solutions)
        return {solutions[solution]: verdicts["forward"] for solution, _, _, verdicts in graded}


@pytest.mark.parametrize("name", FAULTS)
def test_the_earliest_cause_wins(name, two_faults):
    assert two_faults[name].verdict == FAULTS[name][1], two_faults[name]


def test_reasons_are_one_line_and_say_where(two_faults):
    assert two_faults["raises"].reason == "ValueError: two lines, line 5 of rope.py"
    assert all(verdict.reason.isprintable() for verdict in two_faults.values())
    assert two_faults["sys.exit"].reason == "SystemExit: 0, line 5 of rope.py"


def graded(tmp_path, source, case=CASE):
    path = tmp_path / "somebody" / "rope.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    with Sweep("cpu") as sweep:
        ((*_, verdicts),) = sweep.grade(ROPE, [case], [Solution(path, "rope")])
    return verdicts


def test_a_write_between_a_views_elements_is_a_mutation(tmp_path):
    source = (
        "import torch\nfrom common.ops.rope import reference\n\n"
        "def rope(t, freqs):\n"
        "    raw = torch.empty(0).set_(t.untyped_storage())\n"
        "    raw[0] += 1  # the view begins behind it\n"
        "    return reference(t, freqs)\n"
    )
    verdicts = graded(tmp_path, source, CASES["sbhd-5x2x3x12-float32-d2=8-strided"])
    assert verdicts["forward"].verdict == "MUTATED_INPUT"
    assert verdicts["forward"].reason == "t changed"


@pytest.mark.parametrize(("layout", "count"), [("strided", 150), ("offset", 3), ("transposed", 0)])
def test_between_a_views_elements_is_the_guard_and_no_element_is(layout, count):
    """However far the elements are shifted."""
    case = CASES[f"sbhd-5x2x3x12-float32-d2=8-{layout}"]
    worker = SimpleNamespace(ask_again=lambda: True, arena=lambda nbytes: Arena("cpu", nbytes))
    exchange = Exchange(make_problem(ROPE, case, 0, "cpu"), worker)
    slot = exchange.slots["t"]
    memory = exchange._arena.bytes_of(slot)
    for attempt in exchange.attempts:
        exchange.lay_inputs(attempt)
        guards = (memory == GUARDS[attempt % 2]).view(-1, 4).all(1)
        assert guards.sum() == len(guards) - 360 == count
        assert not guards.as_strided(slot.size, slot.stride, slot.offset).any()
        assert exchange.changed() is None


DIES_IN_BACKWARD = """
import os
import torch
from common.ops.rope import reference

class Dies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs):
        return reference(t, freqs)

    @staticmethod
    def backward(ctx, gradient):
        os.abort()

def rope(t, freqs):
    return Dies.apply(t, freqs)
"""


@pytest.mark.parametrize("turn", [0, 1])
def test_a_death_in_backward_leaves_forward_its_verdict(tmp_path, monkeypatch, turn):
    """Also where one more answer would be asked for."""
    monkeypatch.setattr("common.grading.worker.Worker.ask_again", lambda worker: bool(turn))
    verdicts = graded(tmp_path, DIES_IN_BACKWARD)
    assert verdicts["forward"].verdict == "PASSED"
    assert verdicts["backward"].verdict == "CRASHED"
    assert "SIGABRT" in verdicts["backward"].reason


def test_wrong_once_and_unsupported_then_is_not_unsupported(tmp_path):
    source = (
        "calls = []\n\ndef rope(t, freqs):\n    calls.append(1)\n"
        "    if len(calls) > 1:\n        raise NotImplementedError('later')\n    return t * 3\n"
    )
    verdicts = graded(tmp_path, source)
    assert verdicts["forward"].verdict == "NONDETERMINISTIC"
    assert verdicts["backward"].verdict != "UNSUPPORTED"


@pytest.mark.parametrize(
    "reply", ["{}", "[]", '{"number": 1}', '{"number": 3, "shape": 3}', "[" * 99_999, "no json"]
)
def test_what_is_no_reply_costs_that_solution_alone(tmp_path, reply):
    """Written over the socket by a solution that finds it among its open files."""
    source = (
        "import os, stat\n\ndef rope(t, freqs):\n    for fd in range(3, 64):\n        try:\n"
        "            if stat.S_ISSOCK(os.fstat(fd).st_mode):\n"
        f"                os.write(fd, {reply!r}.encode() + b'\\n')\n"
        "        except OSError:\n            pass\n    return t\n"
    )
    assert graded(tmp_path, source)["forward"].verdict == "TAMPERED"


def test_an_output_without_grad_fn_is_an_unsupported_backward(tmp_path):
    path = tmp_path / "detached" / "rope.py"
    path.parent.mkdir()
    path.write_text(
        "from common.ops.rope import reference\n\n\n"
        "def rope(t, freqs):\n    return reference(t.detach(), freqs)\n"
    )
    with Sweep("cpu") as sweep:
        ((*_, verdicts),) = sweep.grade(ROPE, [CASE], [Solution(path, "rope")])
    assert verdicts["forward"].verdict == "PASSED"
    assert verdicts["backward"].verdict == "UNSUPPORTED"
    assert "grad_fn" in verdicts["backward"].reason


def test_a_twin_keeps_its_verdicts_apart_from_the_board_case():
    for op in map(ops.load, ops.names()):
        for case in op.cases("board"):
            twin = op.twin(case)
            assert twin.twin
            assert twin.name != case.name
            assert dataclasses.replace(twin, twin=False) != twin


@pytest.mark.parametrize(
    ("truth", "again", "stayed"),
    [
        ([1.0] * 9, [1.0] * 9, True),
        ([1.0] * 9, [1.0] * 8 + [2.0], False),
        ([1.0] * 7, [1.0] * 7, False),
        ([1.0] * 7 + [0.0] * 99, [1.0] * 7 + [0.0] * 99, False),
    ],
)
def test_what_stayed_the_same_is_no_proof_where_it_is_little_or_zero(truth, again, stayed):
    first, again = torch.tensor(truth), torch.tensor(again)
    assert _stayed(first, again, first.double()) == stayed
