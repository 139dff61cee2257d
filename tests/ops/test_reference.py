"""What every reference promises of its numbers: they are finite, and float64 stays float64.

Else a right solution fails, and the author of the op is the last one to find out why.
"""

import traceback
from typing import Protocol

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
    assert not (wrong := not_finite(op, case)), lacks(op, wrong)


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
    assert not wrong, lacks(op, wrong)


# --- references that break a promise --------------------------------------------------------------


class RmsNorm(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...


def rms_norm(eps=1e-6, dtype=lambda dtype: dtype):
    """Return an op that divides by the root of a mean, computed in a dtype."""

    def reference(x, weight):
        wide = x.to(dtype(x.dtype))
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)

    return shaped(
        name="rms_norm", interface=RmsNorm, reference=reference, rows=("x",), vectors=("weight",),
        flops=(5, 12),
    )  # fmt: skip


def test_what_breaks_a_promise_is_a_line_with_an_advice():
    op = rms_norm(eps=0)
    line = not_finite(op, next(case for case in op.cases("smoke") if case.values == "zeros"))
    assert line.startswith("output of the reference in float64 is NaN or infinite in ")
    assert line.endswith("with an eps for example")
    op = rms_norm(dtype=lambda _: torch.float32)
    line = rounded(op, next(op.cases("smoke")))
    assert line.startswith("the reference rounds float64, the truth, to float32 (line ")
    assert line.endswith(f" write x.to({PROMOTED})")


def test_what_the_lines_advise_keeps_both_promises():
    op = rms_norm(dtype=lambda dtype: torch.promote_types(dtype, torch.float32))
    assert not any(rounded(op, case) for case in op.cases("smoke") if case.dtype == "float32")
    for case in op.cases("smoke"):
        assert case.values == "normal" or not not_finite(op, case)
