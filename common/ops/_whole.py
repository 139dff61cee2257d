"""Validation of an op's file: a fault is a line that names the file, the field and the cause."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from common.interfaces import shown
from common.ops._draw import draw, facts_of
from common.paths import OPS
from common.spec import DIRECTIONS, Case, Op, Tier, Work


class _Fault(Exception):
    """A fault of an op; the text starts with the field's name."""


def checked(name: str, load: Callable[[], ModuleType]) -> Op[Any] | str:
    """Return a module's OP if its fields and its board cases are valid, else the fault.

    The checks create no tensors.

    Args:
        name: The name of the op's file, without `.py`.
        load: A function that imports the file.
    """
    path = OPS / f"{name}.py"
    try:
        op = load().OP
    except Exception as error:
        entries = traceback.extract_tb(error.__traceback__)
        lines = [entry.lineno for entry in entries if entry.filename == str(path)]
        line_number = f", line {lines[-1]}" if lines else ""
        return f"{shown(path)}{line_number}: {_one_line(error)}"
    if not isinstance(op, Op):
        return f"{shown(path)}: OP is a {type(op).__name__}, not a common.spec.Op"
    if op.name != name:
        return f"{shown(path)}: OP.name is {op.name!r}, not the file's name"
    return _fault(op, _check_fields, op) or _fault(op, _check_board, op) or op


def trial_fault(op: Op[Any]) -> str:
    """Run an op on the CPU and return the fault, or "" if there is none.

    Draw the first reduced board case and the first smoke case, and run the reference on the smoke
    case, forward and backward.
    """
    return _fault(op, _try, op)


def listed(op: Op[Any], tier: Tier, device: str) -> list[Case] | str:
    """Return the cases of a tier as the device runs them, or the fault in the cases."""
    cases: list[Case] = []

    def check() -> None:
        with _of("cases"):
            cases.extend(op.tier(tier, device))
        _check_names(cases, tier)

    return _fault(op, check) or cases


def _fault(op: Op[Any], check: Callable[..., None], *arguments: Any) -> str:
    """Return the line of the first fault that a check finds, "" if there is none."""
    try:
        check(*arguments)
    except _Fault as fault:
        return f"{shown(OPS / f'{op.name}.py')}: OP.{fault}"
    return ""


@contextlib.contextmanager
def _of(field: str, case: Case | None = None) -> Iterator[None]:
    """Turn an error of the block into a fault of the field."""
    try:
        yield
    except Exception as error:
        of_case = f" of {case.name}" if case else ""
        raise _Fault(f"{field}{of_case}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _require(condition: object, fault: str) -> None:
    if not condition:
        raise _Fault(fault)


def _check_fields(op: Op[Any]) -> None:
    known = [*inspect.signature(op.interface.__call__).parameters][1:]
    with _of("reference"):
        parameters = [*inspect.signature(op.reference).parameters]
    _require(parameters == known, f"reference takes {parameters}, the interface {known}")
    for field in ("differentiable", "tracks"):
        names = getattr(op, field)
        is_names = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
        _require(is_names, f"{field} is {names!r}, not a tuple of names: ('x',) has a comma")
        _require(names, f"{field} is empty")
    unknown = sorted({*op.differentiable}.difference(known))
    _require(not unknown, f"differentiable names {unknown}; the arguments are {known}")


def _check_board(op: Op[Any]) -> None:
    with _of("cases"):
        board = list(op.cases("board"))
    _require(board, "cases: the board has no case")
    _check_names(board, "board")
    twins: dict[str, str] = {}
    for case in board:
        with _of("twin", case):
            twin = op.twin(case)
        _require(twin.twin, f"twin of {case.name}: `twin` is not true")
        other = twins.setdefault(twin.name, case.name)
        same = f"twin: {other} and {case.name} have twins of the same name, {twin.name}"
        _require(other == case.name, same)
        unknown = sorted({*map(case.track_of, case.directions)}.difference(op.tracks))
        _require(not unknown, f"tracks lacks {unknown}, a track of {case.name}")


def _check_names(cases: list[Case], tier: Tier) -> None:
    names = Counter(case.name for case in cases)
    for name, count in names.most_common(1):
        _require(count == 1, f"cases: {count} {tier} cases have the same name, {name}")


def _try(op: Op[Any]) -> None:
    with _of("cases"):
        twin, case = op.twin(next(op.cases("board"))), next(op.cases("smoke"))
    for each in (twin, case):
        with _of("draw", each):
            arguments, upstream = draw(op, each, 0, "cpu")
            leaves = {name: arguments[name].detach() for name in op.differentiable}
    with _of("reference", case):
        inputs = [leaf.requires_grad_() for leaf in leaves.values()]
        output = op.reference(**{**arguments, **leaves})
        gradients = torch.autograd.grad(output, inputs, upstream, allow_unused=True)
    dtype = f"reference of {case.name}: gives {output.dtype}, not the case's dtype"
    _require(output.dtype == getattr(torch, case.dtype), dtype)
    for name, gradient in zip(leaves, gradients, strict=True):
        _require(gradient is not None, f"differentiable: the reference gives {name} no gradient")
    with _of("axes", case):
        axes = {name: len(each) for name, each in op.axes(case, arguments).items()}
    for name, tensor in {"output": output, **leaves}.items():
        named = f"has {axes[name]} names" if name in axes else "has no entry"
        fault = f"axes of {case.name}: {named} for {name!r}, of {tensor.dim()} dimensions"
        _require(axes.get(name) == tensor.dim(), fault)
    with _of("work", case):
        works = [op.work(case, direction) for direction in DIRECTIONS]
    for work in works:
        _require(isinstance(work, Work), f"work of {case.name}: is {work!r}, not a spec.Work")
    with _of("workspace", case):
        op.workspace(case)
    with _of("cases", case):
        facts_of(op, case)
