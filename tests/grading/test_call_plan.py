"""The plan of a case: calls that live at once, further modes."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.draws import Draws
from common.grading import grade as grading
from common.grading import problem
from common.grading.call_plan import modes, plan_of
from common.grading.problem import Change
from common.spec import DIRECTIONS
from tests.support.workers import AS_IT_IS, CASES, CHOOSE, MASKED, SAVES, chosen, verdicts_of

NO_GRAD, INFERENCE, X_ALONE, WEIGHTS_ALONE = range(4)


@pytest.fixture
def verdicts(tmp_path, fork_server, monkeypatch):
    """Return a function from the source of a masked_linear, and choices, to its verdicts."""
    return partial(verdicts_of, fork_server, tmp_path, monkeypatch)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("mode", [None, *range(5)])
@pytest.mark.slow
def test_an_honest_solution_passes_whatever_is_asked(verdicts, interleaved, mode):
    """It honours needs_input_grad."""
    found = verdicts(SAVES.format(**AS_IT_IS), interleaved=interleaved, mode=mode)
    assert [v.verdict for v in found.values()] == ["PASSED", "PASSED"], found
    assert found["backward"].notes == (grading.NO_KERNEL,)


# --- two calls at once ----------------------------------------------------------------------------

STATEFUL = """
import torch

memory = {{}}
stack = []

class MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        {save}
        ctx.save_for_backward(w_v, w_t, mask[:, None])
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        {load}
        w_v, w_t, mask = ctx.saved_tensors
        d_x = torch.where(mask, grad @ w_v, grad @ w_t)
        return d_x, (grad * mask).T @ x, (grad * ~mask).T @ x, None

def masked_linear(x, w_v, w_t, mask):
    return MaskedLinear.apply(x, w_v, w_t, mask)
"""


@pytest.mark.parametrize("order", [0, 1])
def test_a_stack_of_saved_tensors_serves_one_order_alone(verdicts, monkeypatch, order):
    """The first backward is of either call; a stack is right for the latest, as in a model."""
    dice = SimpleNamespace(shuffle=list.reverse if order else lambda ready: None)
    monkeypatch.setattr(
        "common.grading.problem._unchanged_inputs", lambda arguments, dice: frozenset()
    )
    source = STATEFUL.format(save="stack.append(x.clone())", load="x = stack.pop()")
    found = verdicts(source, interleaved=True, dice=dice)
    if order:
        assert found["backward"].verdict == "PASSED", found["backward"]
    else:
        assert found["backward"].reason.endswith("the same inputs, the second beside another call")
    assert found["forward"].verdict == "PASSED"
    assert verdicts(source)["backward"].verdict == "PASSED", "one call at a time cannot show it"


BEYOND = "import ctypes; x, *_ = ctx.saved_tensors; end = x.data_ptr() + x.nbytes"
READ, SMALL = "ctypes.c_float.from_address(end).value", "70x40x24-float32-span"


def test_calls_beside_the_latest_leave_the_guards_of_its_inputs(verdicts):
    """They have the same inputs; bytes of another kind would hide that backward reads past x."""
    source = SAVES.format(**AS_IT_IS | {"before": BEYOND, "factor": READ})
    # the last of three is an even one
    found = verdicts(source, SMALL, interleaved=True, concurrent=3)["backward"]
    assert found.verdict == "OUT_OF_BOUNDS", found


def test_an_output_that_the_next_call_overwrites_is_named(verdicts):
    source = (
        "import torch\n\nkept = {}\n\ndef masked_linear(x, w_v, w_t, mask):\n"
        "    right = torch.where(mask[:, None], x @ w_v.T, x @ w_t.T).detach()\n"
        "    return kept.setdefault(right.shape, torch.empty_like(right)).copy_(right)\n"
    )
    found = verdicts(source, interleaved=True)["forward"]
    assert found.verdict == "INCORRECT_NUMERICAL"
    assert found.reason.startswith("output of one call changed when the next was made")


@pytest.mark.parametrize("dies", ["forward", "backward"])
@pytest.mark.parametrize("call", [2, 3])
def test_a_death_amid_two_calls_is_that_and_no_error_of_the_harness(verdicts, dies, call):
    count = (
        "memory['n'] = memory.get('n', 0) + 1\n"
        f"        if memory['n'] == {call}: __import__('os').abort()"
    )
    save, load = "ctx.x = x.clone()", "x = ctx.x"
    save, load = (
        f"{text}\n        {count}" if each == dies else text
        for each, text in (("forward", save), ("backward", load))
    )
    found = verdicts(STATEFUL.format(save=save, load=load), interleaved=True)
    assert found[dies].verdict == "CRASHED", found
    assert "SIGABRT" in found[dies].reason


# --- chance and comparisons -----------------------------------------------------------------------


def test_without_a_comparison_nothing_passes(verdicts, monkeypatch):
    monkeypatch.setattr(grading.PlanRun, "_compare", lambda *_: None)
    found = verdicts(SAVES.format(**AS_IT_IS))
    assert {(v.verdict, v.reason) for v in found.values()} == {
        ("CRASHED", "no result was compared")
    }


def test_empty_results_are_compared_by_shape_and_dtype(verdicts):
    found = verdicts(SAVES.format(**AS_IT_IS), "0x16x24-float32-span")
    assert [v.verdict for v in found.values()] == ["PASSED", "PASSED"]
    source = "def masked_linear(x, w_v, w_t, mask):\n    return (x @ w_v.T).double()\n"
    found = verdicts(source, "0x16x24-float32-span")
    assert found["forward"].verdict == "INCORRECT_DTYPE"


def test_a_version_comes_again_for_the_same_content_alone(verdicts):
    """However often the same memory is bound."""
    source = (
        "import torch\n\nseen = {}\n\ndef masked_linear(x, w_v, w_t, mask):\n"
        "    for each in (x, w_v, w_t, mask):\n"
        "        key, held = (each.data_ptr(), each._version), each.detach().clone()\n"
        "        assert torch.equal(seen.setdefault(key, held), held)\n"
        "    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)\n"
    )
    found = verdicts(source, interleaved=True, mode=WEIGHTS_ALONE)
    assert [v.verdict for v in found.values()] == ["PASSED", "PASSED"], found
    assert torch.zeros(1)._version == 0, "a new tensor's, which was every argument's"


@pytest.mark.parametrize(
    ("unchanged", "wanted"),
    [({"w_v"}, "INCORRECT_NUMERICAL"), ({"w_v", "w_t"}, "PASSED"), ((), "PASSED")],
)
def test_what_is_kept_under_one_input_must_fit_the_others(verdicts, monkeypatch, unchanged, wanted):
    source = (
        "import torch\n\nkept = {}\n\ndef masked_linear(x, w_v, w_t, mask):\n"
        "    key = (w_v.data_ptr(), w_v._version)\n"
        "    textual = kept.setdefault(key, w_t.detach().clone())\n"
        "    return torch.where(mask[:, None], x @ w_v.T, x @ textual.T)\n"
    )
    monkeypatch.setattr(problem, "_unchanged_inputs", lambda arguments, dice: frozenset(unchanged))
    assert verdicts(source, interleaved=True)["forward"].verdict == wanted


# --- changed inputs -------------------------------------------------------------------------------

RECORDS = """
import torch

calls, held = [], []

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

values = []
"""
SMALL_HALF = "19x24x40-bfloat16-span"
NEW = "now['mask'][0] != before['mask'][0] and now['mask'][2] > before['mask'][2]"


@pytest.mark.parametrize(
    ("change", "held", "promise"),
    [
        (Change.REPLACED, "0", "now == before"),
        (Change.REPLACED, "mask", NEW),
        (Change.REPLACED, "mask.detach()", "now['mask'][2] > before['mask'][2]"),
        (Change.REPLACED, "mask[1:]", NEW),
        (Change.FLOAT32, "0", "now['mask'] == before['mask'] and x.dtype == torch.float32"),
        (Change.FLOAT16, "0", "now['mask'] == before['mask'] and x.dtype == torch.float16"),
        (Change.WRITTEN, "0", "now['mask'][2] > before['mask'][2]"),
    ],
)
def test_tensors_change_as_in_a_users_process(verdicts, tmp_path, change, held, promise):
    """Ids, addresses and versions come again where a tensor is freed, not where it is held."""
    written = change is Change.WRITTEN
    count = 2 if written else 3
    source = RECORDS.format(count=count, promise=promise, held=held)
    found = verdicts(source, SMALL_HALF, interleaved=written, change=change)
    assert [v.verdict for v in found.values()] == ["PASSED", "PASSED"], found
    assert [*tmp_path.glob("*/*.asked")], "the last call was not made"


@pytest.mark.parametrize("change", [Change.REPLACED, Change.FLOAT32])
def test_what_a_changed_call_lacks_is_no_fault(verdicts, change):
    """Coverage must not depend on the draw."""
    source = "calls = []\n" + SAVES.format(
        **AS_IT_IS | {"first": "calls.append(x)\n    if len(calls) == 3: raise NotImplementedError"}
    )
    found = verdicts(source, SMALL_HALF, change=change)
    assert [v.verdict for v in found.values()] == ["PASSED", "PASSED"], found
    assert found["forward"].notes == verdicts(SAVES.format(**AS_IT_IS))["forward"].notes


# --- programs that conflict -----------------------------------------------------------------------

ORDERED = """
import torch
import triton
import triton.language as tl

@triton.jit
def _last(out, values):
    tl.store(out + 3, tl.load(values + tl.program_id(0)))

def _two(value):
    return torch.stack((value, value.nextafter(value + 1)))

class MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask[:, None])
        out = torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)
        if {forward}:
            _last[(2,)](out, _two(out[0, 3]))
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x = torch.where(mask, grad @ w_v, grad @ w_t)
        if not {forward}:
            _last[(2,)](d_x, _two(d_x[0, 3]))
        return d_x, (grad * mask).T @ x, (grad * ~mask).T @ x, None

def masked_linear(x, w_v, w_t, mask):
    return MaskedLinear.apply(x, w_v, w_t, mask)
"""


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_programs_whose_order_shows_are_named(verdicts, direction):
    found = verdicts(ORDERED.format(forward=direction == "forward"))
    assert found[direction].verdict == "NONDETERMINISTIC", found
    assert ": programs (0,) and (1,) both write out + 3, line 8 of masked_linear.py: tl.store(" in (
        found[direction].reason
    )


# --- further modes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "first", "wanted"),
    [
        (NO_GRAD, "if not torch.is_grad_enabled(): return x * 2", "INCORRECT_SHAPE"),
        (INFERENCE, "if torch.is_inference_mode_enabled(): 1 / 0", "RUNTIME_ERROR"),
        (X_ALONE, "if not w_v.requires_grad: 1 / 0", "RUNTIME_ERROR"),
        (WEIGHTS_ALONE, "if not x.requires_grad: 1 / 0", "RUNTIME_ERROR"),
    ],
)
def test_a_mode_counts_to_forward(verdicts, mode, first, wanted):
    found = verdicts(SAVES.format(**{**AS_IT_IS, "first": first}), mode=mode)
    assert found["forward"].verdict == wanted, found["forward"]
    assert found["forward"].reason.endswith(modes(MASKED, "cpu")[mode].text)
    assert found["backward"].verdict == "PASSED"


@pytest.mark.parametrize("place", ["first", "before"])
def test_what_a_mode_leaves_unsupported_is_noted(verdicts, place):
    """Coverage must not depend on the draw."""
    condition, direction = {
        "first": ("not w_v.requires_grad", "forward"),
        "before": ("not ctx.needs_input_grad[1]", "backward"),
    }[place]
    source = SAVES.format(
        **{**AS_IT_IS, place: f"if {condition}: raise NotImplementedError('some')"}
    )
    found = verdicts(source, mode=X_ALONE)
    assert [v.verdict for v in found.values()] == ["PASSED", "PASSED"], found
    assert found[direction].notes[0] == f"some, {modes(MASKED, 'cpu')[X_ALONE].text}"


def test_threads_that_write_slices_are_noted(verdicts):
    source = (
        "import torch\nfrom concurrent.futures import ThreadPoolExecutor\n\n"
        "def masked_linear(x, w_v, w_t, mask):\n"
        "    right = torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)\n"
        "    with ThreadPoolExecutor(1) as pool:\n"
        "        pool.submit(lambda: right.mul_(1)).result()\n    return right\n"
    )
    found = verdicts(source, mode=INFERENCE)["forward"]
    assert found.verdict == "PASSED", found
    assert "Inplace update" in found.notes[0]


def test_a_table_kept_for_each_width_is_no_fault(verdicts):
    """Made in inference mode it could not be saved for backward: that mode is asked last."""
    source = (
        "import functools\nimport torch\n\n@functools.cache\n"
        "def ones(count):\n    return torch.ones(count, 1, dtype=torch.bfloat16)\n\n"
        "def masked_linear(x, w_v, w_t, mask):\n"
        "    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T) * ones(len(x))\n"
    )
    found = verdicts(source, mode=INFERENCE)
    assert [v.verdict for v in found.values()] == ["PASSED", "PASSED"], found


@pytest.mark.parametrize("mode", [NO_GRAD, X_ALONE])
def test_what_backward_changed_is_not_forwards(verdicts, mode):
    """Also where forward is asked after it, and two sets of inputs are laid."""
    source = SAVES.format(**{**AS_IT_IS, "before": "grad.mul_(2)"})
    found = verdicts(source, mode=mode, interleaved=True)
    assert [v.verdict for v in found.values()] == ["PASSED", "MUTATED_INPUT"], found


@pytest.mark.slow
def test_a_solution_without_gradients_is_unsupported_in_backward_alone(verdicts):
    source = (
        "import torch\n\ndef masked_linear(x, w_v, w_t, mask):\n"
        "    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T).detach()\n"
    )
    for mode in range(5):
        for interleaved in (False, True):
            found = verdicts(source, mode=mode, interleaved=interleaved)
            assert [v.verdict for v in found.values()] == ["PASSED", "UNSUPPORTED"], found


OPS = [ops.load(name) for name in ops.names()]


def parts(op):
    """The inputs that take a gradient, of each mode that freezes some."""
    return [mode.differentiable for mode in modes(op, "cpu") if not mode.setting]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_parts_are_never_whole_and_of_two_inputs_each_is_frozen_without_the_other(op):
    frozen = parts(op)
    assert frozen and op.differentiable not in frozen and op.differentiable[1:] in frozen
    assert len({*frozen}) == len(frozen)
    for one, other in itertools.permutations(op.differentiable, 2):
        assert any(one in part and other not in part for part in frozen), (one, other)
    gpu, cpu = ({mode.setting for mode in modes(op, device)} for device in ("cuda", "cpu"))
    assert gpu - cpu == {"stream"}


@pytest.mark.parametrize("op", ["masked_linear", "masked_ffn"])
def test_each_half_of_the_weights_is_trained_with_x(op):
    x, *weights = ops.load(op).differentiable
    middle = len(weights) // 2
    assert {(x, *weights[:middle]), (x, *weights[middle:])} <= {*parts(ops.load(op))}


def test_an_empty_part_is_named():
    (mode,) = (mode for mode in modes(ops.load("rotate_half"), "cpu") if not mode.setting)
    assert mode.text == "where no input takes a gradient"


# --- the plan in words ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "lines"),
    [
        (
            {},
            [
                "forward of first; backward of first",
                "if forward answered: forward of latest; backward of latest",
                "comparison of first",
            ],
        ),
        (
            {"interleaved": True, "concurrent": 1, "mode": NO_GRAD},
            [
                "forward of first; backward of first",
                "if forward answered: forward of other inputs, latest, concurrent 1;"
                " output once more of other inputs; backward of concurrent 1, latest, other inputs;"
                " gradients once more of concurrent 1",
                "comparison of first",
                "if forward is right and backward ended no process:"
                " forward of further; comparison of further",
                "further: under torch.no_grad()",
            ],
        ),
        (
            {"change": Change.REPLACED},
            [
                "forward of first; backward of first",
                "if forward answered: forward of latest; backward of latest",
                "comparison of first",
                "if forward is right and backward ended no process:"
                " forward of replacement; comparison of replacement",
                "replacement: of a call on other inputs, at the addresses of freed ones",
            ],
        ),
    ],
)
def test_a_plan_says_what_is_asked(monkeypatch, choices, lines):
    monkeypatch.setattr(CHOOSE, chosen(dice=SimpleNamespace(shuffle=list.reverse), **choices))
    case = CASES["70x40x24-float32-span"]
    made = plan_of(problem.make_problem(MASKED, case, Draws(0), "cpu"), None)
    assert str(made).splitlines() == lines


def test_a_failure_has_its_plan(verdicts):
    found = verdicts(SAVES.format(**{**AS_IT_IS, "factor": "2"}))
    assert found["backward"].plan.startswith("forward of first; backward of first\n")
    assert not found["forward"].plan and "plan" not in found["backward"].json
