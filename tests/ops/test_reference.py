"""What every reference promises of its numbers: they are finite, and float64 stays float64.

Else a right solution fails, and the author of the op is the last one to find out why.
"""

import traceback
from typing import Protocol

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from common.grading import oracle
from common.grading.compare import label
from common.ops._draw import draw
from common.ops._shaped import shaped
from tests.support.ops import every_case, every_op, lacks

PROMOTED = "torch.promote_types(x.dtype, torch.float32)"
"""The dtype that people convert halves to for a sum; float64 stays what it is."""
WIDER = f"call torch's fused function (torch.nn.functional), or compute in {PROMOTED}"


def said(op, wrong):
    """Fail with one line, where there is one."""
    if wrong:
        pytest.fail(lacks(op, wrong), pytrace=False)


# --- every number is finite -----------------------------------------------------------------------


def not_finite(op, case):
    """Return what is wrong with the first result that is not finite, and what to do; or ""."""
    arguments, upstream = draw(op, case, 0, "cpu")
    gradients = "backward" in case.directions
    truth = oracle.truth(op, arguments, upstream, gradients)
    eager = oracle.eager(op, arguments, upstream, gradients)
    for dtype, results in (("float64", truth), (case.dtype, eager)):
        for name, result in results.items():
            if count := int((~result.isfinite()).sum()):
                where = f"in {count} of {result.numel()} elements of {case.name}"
                wrong = f"{label(name)} of the reference in {dtype} is NaN or infinite {where}"
                return f"{wrong}: {_advice(case, dtype, truth[name])}"
    return ""


def _advice(case, dtype, truth):
    """Return what to do, where `zeros` may not be left out, since every op takes them."""
    advice = WIDER
    if dtype == "float64":
        advice = "keep it from dividing by 0, with an eps for example"
    elif truth.numel() and truth.abs().max() > torch.finfo(getattr(torch, dtype)).max:
        advice = f"the value itself is beyond {dtype}, so state cases with smaller numbers"
    left_out = f', or leave "{case.values}" out of `values`'
    return advice + left_out * (case.values in ("subnormal", "huge"))


@every_case
def test_the_reference_is_finite_in_its_dtype_and_in_float64(op, case):
    said(op, not_finite(op, case))


# --- float64 stays float64 ------------------------------------------------------------------------


class Roundings(TorchDispatchMode):
    """Notes the first operator that makes a lower precision of float64, and its line in a file."""

    def __init__(self, file):
        super().__init__()
        self.file, self.found = file, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        lower = {dtype for dtype in _floating(made) if dtype.itemsize < 8}
        if not self.found and lower and torch.float64 in _floating((args, kwargs)):
            stack = traceback.extract_stack()
            lines = [entry.lineno for entry in stack if entry.filename == self.file]
            line = f"line {lines[-1]}, " if lines else ""
            self.found = f"{lower.pop()} ({line}{func})".replace("torch.", "")
        return made


def _floating(values):
    """Return the dtypes of the floating-point tensors among values."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return {tensor.dtype for tensor in tensors if tensor.is_floating_point()}


def rounded(op, case):
    """Return where the reference in float64 is rounded, and what to do; "" where it is not."""
    arguments, upstream = draw(op, case, 0, "cpu")
    with Roundings(op.reference.__code__.co_filename) as roundings:
        oracle.truth(op, arguments, upstream, "backward" in case.directions)
    if not roundings.found:
        return ""
    return (
        f"the reference rounds float64, the truth, to {roundings.found} in {case.name}:"
        f" in place of x.float() or x.to(torch.float32) write x.to({PROMOTED})"
    )


@every_op
def test_the_reference_in_float64_rounds_to_no_lower_precision(op):
    """One line for the op, as it fails in each case; in float64 the case's dtype says nothing."""
    cases = [case for case in op.cases("smoke") if case.dtype == "float32"]
    wrong = next(filter(None, (rounded(op, case) for case in cases)), "")
    said(op, wrong)


# --- references that break a promise --------------------------------------------------------------


class RmsNorm(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...


def op_of(reference):
    """The op, whole but for its reference."""
    return shaped(
        name="rms_norm", interface=RmsNorm, reference=reference, rows=("x",), vectors=("weight",),
        flops=(5, 12),
    )  # fmt: skip


def rms_norm(eps=1e-6, dtype=lambda dtype: dtype):
    def reference(x, weight):
        wide = x.to(dtype(x.dtype))
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)

    return reference


class Scaled(torch.autograd.Function):
    """Round in backward alone."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, upstream):
        x, weight = ctx.saved_tensors
        product = (upstream.float() * x.float()).flatten(0, -2).sum(0)
        return upstream * weight, product.to(weight.dtype)


def failure(test, *arguments):
    """The message of a test of this module that fails."""
    with pytest.raises(pytest.fail.Exception) as raised:
        test(*arguments)
    return str(raised.value)


FINITE = test_the_reference_is_finite_in_its_dtype_and_in_float64
IN_FLOAT64 = test_the_reference_in_float64_rounds_to_no_lower_precision


@pytest.mark.parametrize(
    ("reference", "values", "place", "advice"),
    [
        (rms_norm(eps=0), "zeros", "output of the reference in float64", "with an eps for example"),
        (rms_norm(), "subnormal", "the gradient of x of the reference in float16",
         f'{WIDER}, or leave "subnormal" out of `values`'),
        (lambda x, weight: x * 100 * weight, "huge", "output of the reference in float16",
         'beyond float16, so state cases with smaller numbers, or leave "huge" out of `values`'),
    ],
)  # fmt: skip
def test_a_result_that_is_not_finite_is_a_line(reference, values, place, advice):
    op = op_of(reference)
    case = next(each for each in op.cases("smoke") if each.values == values)
    line = failure(FINITE, op, case)
    assert line.startswith(f"common/ops/rms_norm.py: {place} is NaN or infinite in ")
    assert f" elements of {case.name}: " in line and line.endswith(advice)


@pytest.mark.parametrize(
    "reference",
    [rms_norm(dtype=lambda _: torch.float32), lambda x, weight: Scaled.apply(x, weight)],
)
def test_a_truth_that_is_rounded_is_a_line(reference):
    line = failure(IN_FLOAT64, op_of(reference))
    start, end = line.split(" (line ")
    assert start.endswith("rms_norm.py: the reference rounds float64, the truth, to float32")
    assert "aten._to_copy.default) in 10x2x4x8-float32: " in end and line.endswith(PROMOTED + ")")


@pytest.mark.parametrize(
    "reference",
    [
        rms_norm(dtype=lambda dtype: torch.promote_types(dtype, torch.float32)),
        lambda x, weight: torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6),
    ],
)
def test_what_the_lines_advise_keeps_both_promises(reference):
    op = op_of(reference)
    IN_FLOAT64(op)
    for case in op.cases("smoke"):
        if case.values != "normal":
            FINITE(op, case)
