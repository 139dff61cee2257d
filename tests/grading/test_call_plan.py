"""The plan of a case: calls that live at once, changed inputs, further modes."""

import itertools
from types import SimpleNamespace

import pytest

from common import ops
from common.draws import Draws
from common.errors import Note
from common.grading import problem
from common.grading.call_plan import GRAPH_EVERY, GRAPHS, choose, plan_of
from common.grading.sweep import eager_of
from common.grading.variations import Change, modes
from tests.support.workers import AS_IT_IS, CASES, CHOOSE, MASKED, SAVES, chosen

NO_GRAD, INFERENCE, X_ALONE, WEIGHTS_ALONE = range(4)
SMALL, EMPTY, HALF = "70x40x24-float32-span", "0x16x24-float32-span", "19x24x40-bfloat16-span"


@pytest.fixture
def verdicts(graded_source, monkeypatch):
    """Return a function from the source of a masked_linear, and choices, to its verdicts."""

    def verdicts(source, case="37x72x100-bfloat16-random", **choices):
        monkeypatch.setattr(CHOOSE, chosen(**choices))
        (found,) = graded_source(MASKED, [CASES[case]], source)
        return found.verdicts

    return verdicts


def saves(head="", **parts):
    """Return the source of a masked_linear that differs from the usual one in these parts."""
    return head + SAVES.format(**AS_IT_IS | parts)


def require(found, *wanted):
    assert [verdict.verdict for verdict in found.values()] == list(wanted), found


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("mode", [None, *range(5)])
@pytest.mark.slow
def test_an_honest_solution_passes_whatever_is_asked(verdicts, interleaved, mode):
    """It honours needs_input_grad."""
    found = verdicts(saves(), interleaved=interleaved, mode=mode)
    require(found, "PASSED", "PASSED")
    assert found["backward"].notes == (Note("NO_KERNEL"),)


# --- two calls at once ----------------------------------------------------------------------------


def test_calls_beside_the_latest_leave_the_guards_of_its_inputs(verdicts):
    """They have the same inputs; bytes of another kind would hide that backward reads past x."""
    beyond = "import ctypes; x, *_ = ctx.saved_tensors; end = x.data_ptr() + x.nbytes"
    source = saves(before=beyond, factor="ctypes.c_float.from_address(end).value")
    # the last of three is an even one
    found = verdicts(source, SMALL, interleaved=True, concurrent=3)["backward"]
    assert found.verdict == "OUT_OF_BOUNDS", found


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(("dies", "place"), [("forward", "first"), ("backward", "before")])
def test_a_death_costs_its_own_direction_alone(verdicts, dies, place, call, interleaved):
    """Also amid several calls, and where further answers would be asked for."""
    death = f"calls.append(1); len(calls) == {call} and __import__('os').abort()"
    source = saves("calls = []\n", **{place: death})
    found = verdicts(source, interleaved=interleaved, mode=NO_GRAD)
    assert found[dies].verdict == "CRASHED" and "SIGABRT" in found[dies].reason
    assert dies == "forward" or found["forward"].verdict == "PASSED"


# --- changed inputs -------------------------------------------------------------------------------

RECORDS = """
import torch

calls, values, held = [], [], []

def facts(tensor):
    return id(tensor), tensor.data_ptr(), tensor._version

def masked_linear(x, w_v, w_t, mask):
    named = {{"x": x, "w_v": w_v, "mask": mask}}
    calls.append({{name: facts(tensor) for name, tensor in named.items()}})
    values.append([tensor.tolist() for tensor in (x, w_v, w_t)])
    if len(calls) == {count}:
        before, now = calls[-2:]
        assert {promise}
        assert values[-1] != values[-2]
        assert {held!r} or now["mask"][:2] == before["mask"][:2]
        print("asked", file=open(__file__ + ".asked", "w"))
    held.append({held})
    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)
"""
NEW = "now['mask'][0] != before['mask'][0] and now['mask'][2] > before['mask'][2]"


@pytest.mark.parametrize(
    ("change", "held", "promise"),
    [(Change.REPLACED, "0", "now == before"),
     (Change.REPLACED, "mask", NEW),
     (Change.REPLACED, "mask.detach()", "now['mask'][2] > before['mask'][2]"),
     (Change.REPLACED, "mask[1:]", NEW),
     (Change.FLOAT32, "0", "now['mask'] == before['mask'] and x.dtype == torch.float32"),
     (Change.FLOAT16, "0", "now['mask'] == before['mask'] and x.dtype == torch.float16"),
     (Change.WRITTEN, "0", "now['mask'][2] > before['mask'][2]")],
)  # fmt: skip
def test_tensors_change_as_in_a_users_process(verdicts, tmp_path, change, held, promise):
    """Ids, addresses and versions come again where a tensor is freed, not where it is held."""
    written = change is Change.WRITTEN
    source = RECORDS.format(count=2 if written else 3, promise=promise, held=held)
    require(verdicts(source, HALF, interleaved=written, change=change), "PASSED", "PASSED")
    assert [*tmp_path.glob("*/*.asked")], "the last call was not made"


# --- programs that conflict -----------------------------------------------------------------------

ORDERED = """
import triton
import triton.language as tl

@triton.jit
def last(out, values):
    tl.store(out + 3, tl.load(values + tl.program_id(0)))

def conflict(out):
    value = out[0, 3]
    last[(2,)](out, torch.stack((value, value.nextafter(value + 1))))
    return out
"""


@pytest.mark.parametrize(
    ("direction", "parts"),
    [("forward", {"first": "return conflict(MaskedLinear.apply(x, w_v, w_t, mask))"}),
     ("backward", {"before": "grad = conflict(grad.clone())"})],
)  # fmt: skip
def test_programs_whose_order_shows_are_named(verdicts, direction, parts):
    found = verdicts(saves(ORDERED, **parts))[direction]
    assert found.verdict == "NONDETERMINISTIC", found
    named = ": programs (0,) and (1,) both write out + 3, line 7 of masked_linear.py: tl.store("
    assert named in found.reason


# --- further modes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "first", "wanted"),
    [(NO_GRAD, "if not torch.is_grad_enabled(): return x * 2", "INCORRECT_SHAPE"),
     (INFERENCE, "if torch.is_inference_mode_enabled(): 1 / 0", "RUNTIME_ERROR"),
     (X_ALONE, "if not w_v.requires_grad: 1 / 0", "RUNTIME_ERROR"),
     (WEIGHTS_ALONE, "if not x.requires_grad: 1 / 0", "RUNTIME_ERROR")],
)  # fmt: skip
def test_a_mode_counts_to_forward(verdicts, mode, first, wanted):
    found = verdicts(saves(first=first), mode=mode)
    require(found, wanted, "PASSED")
    assert found["forward"].reason.endswith(modes(MASKED, "cpu")[mode].text)


@pytest.mark.parametrize(
    ("direction", "place", "condition"),
    [("forward", "first", "not w_v.requires_grad"),
     ("backward", "before", "not ctx.needs_input_grad[1]")],
)  # fmt: skip
def test_what_a_mode_leaves_unsupported_is_noted(verdicts, direction, place, condition):
    """Coverage must not depend on the draw."""
    lacks = {place: f"if {condition}: raise NotImplementedError('some')"}
    found = verdicts(saves(**lacks), mode=X_ALONE)
    require(found, "PASSED", "PASSED")
    reason = f"some, {modes(MASKED, 'cpu')[X_ALONE].text}"
    assert found[direction].notes[0] == Note("UNSUPPORTED_MODE", reason)


@pytest.mark.parametrize("name", ops.names())
def test_of_two_inputs_each_is_frozen_without_the_other(name):
    op = ops.load(name)
    frozen = [mode.differentiable for mode in modes(op, "cpu") if not mode.setting]
    assert op.differentiable not in frozen and len({*frozen}) == len(frozen)
    for one, other in itertools.permutations(op.differentiable, 2):
        assert any(one in part and other not in part for part in frozen), (one, other)


@pytest.mark.parametrize("mode", [NO_GRAD, X_ALONE])
def test_what_backward_changed_is_not_forwards(verdicts, mode):
    """Also where forward is asked after it, and two sets of inputs are laid."""
    found = verdicts(saves(before="grad.mul_(2)"), mode=mode, interleaved=True)
    require(found, "PASSED", "MUTATED_INPUT")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("mode", [NO_GRAD, X_ALONE])
def test_without_gradients_backward_alone_is_unsupported(verdicts, mode, interleaved):
    detached = saves(first="return MaskedLinear.apply(x, w_v, w_t, mask).detach()")
    found = verdicts(detached, mode=mode, interleaved=interleaved)
    require(found, "PASSED", "UNSUPPORTED")
    assert "grad_fn" in found["backward"].reason


# --- a kept graph ---------------------------------------------------------------------------------

OVERWRITES = SAVES.replace(
    "ctx.save_for_backward(x, w_v, w_t, mask[:, None])",
    "ctx.kept = x.clone(); ctx.save_for_backward(w_v, w_t, mask[:, None])",
).replace(
    "x, w_v, w_t, mask = ctx.saved_tensors", "x, (w_v, w_t, mask) = ctx.kept, ctx.saved_tensors"
)
ONCE = SAVES.replace("import torch\n", "import torch\nfrom torch.autograd.function import *\n", 1)
ONCE = ONCE.replace("    def backward", "    @once_differentiable\n    def backward")
ENDS = "return d_x, d_v, d_t * {factor}, None"


def ending(source, line):
    """The source with a line before backward's last."""
    return source.replace(ENDS, f"{line}\n        {ENDS}")


OTHER, SECOND = "OTHER_GRADIENTS", "OTHER_SECOND_DERIVATIVES"
SOURCES = {
    "right": (SAVES, {}),
    "overwritten": (ending(OVERWRITES, "x.zero_()"), {OTHER: "w_v, w_t"}),
    "freed": (ending(OVERWRITES, "del ctx.kept"), {}),
    "detached": (
        ending(SAVES, "d_x, d_v, d_t = d_x.detach(), d_v.detach(), d_t.detach()"),
        {SECOND: "x, w_v, w_t"},
    ),
    "detached in part": (
        SAVES.replace("(grad * mask).T @ x", "(grad * mask).T @ x.detach()"),
        {SECOND: "x"},
    ),
    "once differentiable": (ONCE, {SECOND: "x, w_v, w_t"}),
    "refused": (
        SAVES.replace("{before}", "if torch.is_grad_enabled(): raise ValueError('once')"),
        {},
    ),
}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_what_a_kept_graph_gets_wrong_without_an_error_is_noted(verdicts, name, interleaved):
    source, notes = SOURCES[name]
    found = verdicts(source.format(**AS_IT_IS), interleaved=interleaved, keeps_graph=True)
    require(found, "PASSED", "PASSED")
    told = {note.kind: note.detail for note in found["backward"].notes if note.found}
    assert told == {"NO_KERNEL": "", **notes}
    assert found["forward"].notes == (Note("NO_KERNEL"),)


@pytest.mark.parametrize("tier", ["smoke", "board"])
@pytest.mark.parametrize("seed", range(5))
def test_a_run_keeps_a_few_graphs(tier, seed):
    cases = list(MASKED.tier(tier, "cpu"))
    draws = Draws(seed, tuple((case.name, case.group) for case in cases))
    problems = (problem.make_problem(MASKED, case, draws, "cpu") for case in cases)
    kept = sum(choose(each, eager_of(MASKED)).keeps_graph for each in problems)
    assert min(GRAPHS, len(cases) // 2) <= kept + 1 <= max(len(cases) // GRAPH_EVERY, GRAPHS) + 2


# --- the steps of a plan --------------------------------------------------------------------------

SINGLE = "forward first, backward first", "forward latest, backward latest", "comparison first"
LIVE = (
    "forward other inputs, forward latest, forward concurrent 1, output once more other inputs,"
    " backward concurrent 1, backward latest, backward other inputs,"
    " gradients once more concurrent 1"
)
FURTHER = "forward further, comparison further"


@pytest.mark.parametrize(
    ("choices", "rounds"),
    [({}, SINGLE),
     ({"interleaved": True, "concurrent": 1, "mode": NO_GRAD},
      (SINGLE[0], LIVE, SINGLE[2], FURTHER)),
     ({"change": Change.REPLACED}, (*SINGLE, FURTHER.replace("further", "replacement")))],
)  # fmt: skip
def test_a_plan_has_these_steps(monkeypatch, choices, rounds):
    monkeypatch.setattr(CHOOSE, chosen(dice=SimpleNamespace(shuffle=list.reverse), **choices))
    made = plan_of(problem.make_problem(MASKED, CASES[SMALL], Draws(0), "cpu"), None)
    steps = [[f"{action.value} {of.name}" for action, of in each.steps] for each in made.rounds]
    assert tuple(map(", ".join, steps)) == rounds
