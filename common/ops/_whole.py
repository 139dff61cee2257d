"""Validation of an op's file: a fault is a line that names the file, the field and the cause."""

from __future__ import annotations

import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from common.interfaces import shown
from common.ops._draw import draw
from common.paths import OPS
from common.spec import DIRECTIONS, ITEMSIZE, Case, Op, Tier, Work

FUNCTIONS = (
    "reference", "cases", "twin", "draw", "output", "work", "workspace", "axes", "facts"
)  # fmt: skip
"""The fields of an op that are functions."""
NAMES = ("differentiable", "tracks", "movable")
"""The fields of an op that are tuples of names."""


class _Fault(Exception):
    """A field of an op is invalid."""


def checked(name: str, load: Callable[[], ModuleType]) -> Op[Any] | str:
    """Return a module's OP if its fields and its board cases are valid, else the fault.

    The checks create no tensors.

    Args:
        name: The name of the op's file, without `.py`.
        load: A function that imports the file.
    """
    try:
        op = _imported(name, load)
        _check_fields(op, name)
        _check_board(op)
    except _Fault as fault:
        return f"{shown(OPS / f'{name}.py')}{fault}"
    return op


def trial_fault(op: Op[Any]) -> str:
    """Run an op on the CPU and return the fault, or "" if there is none.

    Draw the first reduced board case and the first smoke case, and run the reference on the smoke
    case, forward and backward.
    """
    try:
        for case in (op.twin(_first_case(op, "board")), _first_case(op, "smoke")):
            with _faults_of("draw", case):
                arguments, upstream = draw(op, case, 0, "cpu")
        _check_reference(op, case, arguments, upstream)
    except _Fault as fault:
        return f"{shown(OPS / f'{op.name}.py')}{fault}"
    return ""


def listed(op: Op[Any], tier: Tier, device: str) -> list[Case] | str:
    """Return the cases of a tier as the device runs them, or the fault in the cases."""
    try:
        with _faults_of("cases"):
            cases: list[Case] = list(op.tier(tier, device))
        _check_names(cases, tier)
    except _Fault as fault:
        return f"{shown(OPS / f'{op.name}.py')}{fault}"
    return cases


@contextmanager
def _faults_of(field: str, case: Case | None = None) -> Iterator[None]:
    """Convert any error into a fault of the field."""
    try:
        yield
    except _Fault:
        raise
    except Exception as error:
        of_case = f" of {case.name}" if case else ""
        raise _Fault(
            f": OP.{field}{of_case}: {type(error).__name__}: {_one_line(error)}"
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _imported(name: str, load: Callable[[], ModuleType]) -> Op[Any]:
    try:
        module = load()
    except Exception as error:
        entries = traceback.extract_tb(error.__traceback__)
        lines = [entry.lineno for entry in entries if entry.filename == str(OPS / f"{name}.py")]
        line_number = f", line {lines[-1]}" if lines else ""
        raise _Fault(f"{line_number}: {type(error).__name__}: {_one_line(error)}") from None
    if not isinstance(module.OP, Op):
        raise _Fault(f": OP is a {type(module.OP).__name__}, not a common.spec.Op")
    return module.OP


def _check_fields(op: Op[Any], name: str) -> None:
    def check(field: str, valid: bool, cause: str) -> None:
        if not valid:
            raise _Fault(f": OP.{field} {cause}")

    check("name", op.name == name, f"is {op.name!r}, not the file's name")
    for field in FUNCTIONS:
        value = getattr(op, field)
        check(field, callable(value), f"is {value!r}, not a function")
    for field in NAMES:
        value = getattr(op, field)
        valid = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        check(field, valid, f"is {value!r}, not a tuple of names: ('x',) has a comma")
    signature = vars(op.interface).get("__call__") if isinstance(op.interface, type) else None
    check("interface", signature is not None, "is not a typing.Protocol with a `__call__`")
    known = [*inspect.signature(op.interface.__call__).parameters][1:]
    parameters = [*inspect.signature(op.reference).parameters]
    check("reference", parameters == known, f"takes {parameters}, the interface {known}")
    check("tracks", bool(op.tracks), "is empty: the first track is the main track")
    check("differentiable", bool(op.differentiable), "is empty")
    for field in ("differentiable", "movable"):
        unknown = set(getattr(op, field)).difference(known)
        check(field, not unknown, f"names {sorted(unknown)}; the arguments are {known}")
    unknown = set(op.split.arguments).difference(known)
    check("split", not unknown, f"names {sorted(unknown)}; the arguments are {known}")
    missing = ITEMSIZE.keys() - op.slack.keys()
    check("slack", not missing, f"lacks {sorted(missing)}")


def _check_board(op: Op[Any]) -> None:
    with _faults_of("cases"):
        board = list(op.cases("board"))
    if not board:
        raise _Fault(": OP.cases: the board has no case")
    _check_names(board, "board")
    twins: dict[str, str] = {}
    for case in board:
        with _faults_of("twin", case):
            twin = op.twin(case)
            if not twin.twin:
                raise _Fault(f": OP.twin of {case.name}: `twin` is not true")
            other = twins.setdefault(twin.name, case.name)
        if other != case.name:
            pair = f"{other} and {case.name}"
            raise _Fault(f": OP.twin: {pair} have twins of the same name, {twin.name}")
        with _faults_of("cases", case):
            tracks = {case.track_of(direction) for direction in case.directions}
        if unknown := tracks.difference(op.tracks):
            raise _Fault(f": OP.tracks lacks {sorted(unknown)}, a track of {case.name}")


def _check_names(cases: list[Case], tier: Tier) -> None:
    with _faults_of("cases"):
        ((name, count),) = Counter(case.name for case in cases).most_common(1) or [("", 0)]
    if count > 1:
        raise _Fault(f": OP.cases: {count} {tier} cases have the same name, {name}")


def _first_case(op: Op[Any], tier: Tier) -> Any:
    with _faults_of("cases"):
        case = next(iter(op.cases(tier)), None)
    if case is None:
        raise _Fault(f": OP.cases: tier {tier} has no case")
    return case


def _check_reference(
    op: Op[Any], case: Case, arguments: Mapping[str, Any], upstream: torch.Tensor
) -> None:
    leaves: dict[str, torch.Tensor] = {}
    for name in op.differentiable:
        value = arguments.get(name)
        if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
            raise _Fault(f": OP.draw of {case.name}: {name} is {value!r}, not a floating tensor")
        leaves[name] = value.detach().requires_grad_()
    with _faults_of("reference", case):
        output = op.reference(**{**arguments, **leaves})
        gradients = torch.autograd.grad(output, [*leaves.values()], upstream, allow_unused=True)
    with _faults_of("output", case):
        shape, declared = tuple(output.shape), op.output(case)
    if shape != declared:
        raise _Fault(f": OP.output of {case.name}: is {declared}, the reference gives {shape}")
    if output.dtype != getattr(torch, case.dtype):
        raise _Fault(f": OP.reference of {case.name}: gives {output.dtype}, not the case's dtype")
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is None:
            raise _Fault(f": OP.differentiable: the reference gives {name} no gradient")
    with _faults_of("axes", case):
        axes = op.axes(case, arguments)
        dims = {"output": output.dim()} | {name: value.dim() for name, value in leaves.items()}
    for name, count in dims.items():
        if len(axes.get(name, ())) != count:
            named = f"has {len(axes[name])} names" if name in axes else "has no entry"
            raise _Fault(f": OP.axes of {case.name}: {named} for {name!r}, of {count} dimensions")
    with _faults_of("facts", case):
        dict(op.facts(case))
    for direction in DIRECTIONS:
        with _faults_of("work", case):
            work = op.work(case, direction)
        if not isinstance(work, Work) or work.bytes < 0:
            raise _Fault(f": OP.work of {case.name}: is {work!r}, not a common.spec.Work")
    with _faults_of("workspace", case):
        int(op.workspace(case))
