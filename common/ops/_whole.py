"""Validation of an op's file: a fault is a line that names the file and the cause."""

from __future__ import annotations

import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar

import torch

from common.interfaces import shown
from common.ops._draw import draw, facts_of
from common.paths import OPS
from common.spec import DIRECTIONS, Case, Op, Tier, Work

T = TypeVar("T")


class Invalid(Exception):
    """An op's file contradicts itself."""


def checked(name: str, load: Callable[[], ModuleType]) -> Op[Any] | str:
    """Return a module's OP if its fields and its board cases are valid, else the fault.

    The checks create no tensors.

    Args:
        name: The name of the op's file, without `.py`.
        load: A function that imports the file.
    """

    def check() -> Op[Any]:
        op: Op[Any] = load().OP
        _require(isinstance(op, Op), f"OP is a {type(op).__name__}, not a common.spec.Op")
        _require(op.name == name, f"OP.name is {op.name!r}, not the file's name")
        _check_fields(op)
        _check_board(op)
        return op

    return _result(name, check)


def trial_fault(op: Op[Any]) -> str:
    """Run an op on the CPU and return the fault, or "" if there is none.

    Draw the first reduced board case and the first smoke case, and run the reference on the smoke
    case, forward and backward.
    """
    return _result(op.name, lambda: _try(op)) or ""


def listed(op: Op[Any], tier: Tier, device: str) -> list[Case] | str:
    """Return the cases of a tier as the device runs them, or the fault in the cases."""
    return _result(op.name, lambda: _with_distinct_names(op.tier(tier, device), tier))


def _result(name: str, check: Callable[[], T]) -> T | str:
    """Return a check's result, or in a line why it raises, with the last line of the op's file."""
    path = OPS / f"{name}.py"
    try:
        return check()
    except Invalid as fault:
        return f"{shown(path)}: {fault}"
    except Exception as error:
        entries = traceback.extract_tb(error.__traceback__)
        lines = [entry.lineno for entry in entries if entry.filename == str(path)]
        line_number = f", line {lines[-1]}" if lines else ""
        return f"{shown(path)}{line_number}: {type(error).__name__}: {' '.join(str(error).split())}"


def _require(condition: object, fault: str) -> None:
    if not condition:
        raise Invalid(fault)


def _check_fields(op: Op[Any]) -> None:
    known = [*inspect.signature(op.interface.__call__).parameters][1:]
    parameters = [*inspect.signature(op.reference).parameters]
    _require(parameters == known, f"OP.reference takes {parameters}, the interface {known}")
    for field in ("differentiable", "tracks"):
        names = getattr(op, field)
        is_names = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
        _require(is_names, f"OP.{field} is {names!r}, not a tuple of names: ('x',) has a comma")
        _require(names, f"OP.{field} is empty")
    unknown = sorted({*op.differentiable}.difference(known))
    _require(not unknown, f"OP.differentiable names {unknown}; the arguments are {known}")


def _check_board(op: Op[Any]) -> None:
    board = _with_distinct_names(op.cases("board"), "board")
    _require(board, "OP.cases: the board has no case")
    twins: dict[str, str] = {}
    for case in board:
        twin = op.twin(case)
        _require(twin.twin, f"OP.twin of {case.name}: `twin` is not true")
        other = twins.setdefault(twin.name, case.name)
        same = f"OP.twin: {other} and {case.name} have twins of the same name, {twin.name}"
        _require(other == case.name, same)
        unknown = sorted({*map(case.track_of, case.directions)}.difference(op.tracks))
        _require(not unknown, f"OP.tracks lacks {unknown}, a track of {case.name}")


def _with_distinct_names(cases: Iterable[Case], tier: Tier) -> list[Case]:
    cases = list(cases)
    for name, count in Counter(case.name for case in cases).most_common(1):
        _require(count == 1, f"OP.cases: {count} {tier} cases have the same name, {name}")
    return cases


def _try(op: Op[Any]) -> None:
    draw(op, op.twin(next(iter(op.cases("board")))), 0, "cpu")
    case = next(iter(op.cases("smoke")))
    arguments, upstream = draw(op, case, 0, "cpu")
    leaves = {name: arguments[name].detach().requires_grad_() for name in op.differentiable}
    output = op.reference(**{**arguments, **leaves})
    dtype = f"OP.reference of {case.name}: gives {output.dtype}, not the case's dtype"
    _require(output.dtype == getattr(torch, case.dtype), dtype)
    shape = f"OP.output of {case.name}: is {tuple(upstream.shape)}, not {tuple(output.shape)}"
    _require(output.shape == upstream.shape, shape)
    gradients = torch.autograd.grad(output, [*leaves.values()], upstream, allow_unused=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        _require(gradient is not None, f"OP.differentiable: the reference gives {name} no gradient")
    axes = {name: len(each) for name, each in op.axes(case, arguments).items()}
    for name, tensor in {"output": output, **leaves}.items():
        named = f"has {axes[name]} names" if name in axes else "has no entry"
        fault = f"OP.axes of {case.name}: {named} for {name!r}, of {tensor.dim()} dimensions"
        _require(axes.get(name) == tensor.dim(), fault)
    for work in [op.work(case, direction) for direction in DIRECTIONS]:
        _require(isinstance(work, Work), f"OP.work of {case.name}: is {work!r}, not a spec.Work")
    op.workspace(case)
    facts_of(op, case)
