"""Validation of an op's file: a fault is a line that names the file, the field and the cause."""

from __future__ import annotations

import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import torch

from common.interfaces import shown
from common.ops._draw import draw, facts_of
from common.paths import OPS
from common.spec import DIRECTIONS, ITEMSIZE, Case, Op, Tier, Work

T = TypeVar("T")
NAMES = ("differentiable", "tracks", "permutable")
"""The fields of an op that are tuples of names."""


class _Fault(Exception):
    """A field of an op raises an error; the text starts with the field's name."""


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
    return _first(op, _field_faults(op)) or _first(op, _board_faults(op)) or op


def trial_fault(op: Op[Any]) -> str:
    """Run an op on the CPU and return the fault, or "" if there is none.

    Draw the first reduced board case and the first smoke case, and run the reference on the smoke
    case, forward and backward.
    """
    return _first(op, _trial_faults(op))


def listed(op: Op[Any], tier: Tier, device: str) -> list[Case] | str:
    """Return the cases of a tier as the device runs them, or the fault in the cases."""
    cases: list[Case] = []

    def faults() -> Iterator[str]:
        cases.extend(_run("cases", None, list, op.tier(tier, device)))
        yield from _name_faults(cases, tier)

    return _first(op, faults()) or cases


def _first(op: Op[Any], faults: Iterator[str]) -> str:
    """Return the line of the first fault, "" if there is none."""
    try:
        fault = next(faults, "")
    except _Fault as error:
        fault = str(error)
    return f"{shown(OPS / f'{op.name}.py')}: OP.{fault}" if fault else ""


def _run(field: str, case: Case | None, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function; an error is a fault of the field."""
    try:
        return function(*arguments)
    except Exception as error:
        of_case = f" of {case.name}" if case else ""
        raise _Fault(f"{field}{of_case}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _field_faults(op: Op[Any]) -> Iterator[str]:
    for field in NAMES:
        value = getattr(op, field)
        if not (isinstance(value, tuple) and all(isinstance(item, str) for item in value)):
            yield f"{field} is {value!r}, not a tuple of names: ('x',) has a comma"
    if not (isinstance(op.interface, type) and "__call__" in vars(op.interface)):
        yield "interface is not a typing.Protocol with a `__call__`"
    known = [*inspect.signature(op.interface.__call__).parameters][1:]
    parameters = [*_run("reference", None, inspect.signature, op.reference).parameters]
    if parameters != known:
        yield f"reference takes {parameters}, the interface {known}"
    for field in ("tracks", "differentiable"):
        if not getattr(op, field):
            yield f"{field} is empty"
    named: dict[str, Iterable[str]] = {
        "differentiable": op.differentiable,
        "permutable": op.permutable,
        "split": op.split.arguments,
    }
    for field, names in named.items():
        if unknown := sorted({*names}.difference(known)):
            yield f"{field} names {unknown}; the arguments are {known}"
    if missing := sorted(ITEMSIZE.keys() - op.slack.keys()):
        yield f"slack lacks {missing}"


def _board_faults(op: Op[Any]) -> Iterator[str]:
    board = _run("cases", None, lambda: list(op.cases("board")))
    if not board:
        yield "cases: the board has no case"
    yield from _name_faults(board, "board")
    twins: dict[str, str] = {}
    for case in board:
        twin = _run("twin", case, op.twin, case)
        if not twin.twin:
            yield f"twin of {case.name}: `twin` is not true"
        other = twins.setdefault(twin.name, case.name)
        if other != case.name:
            yield f"twin: {other} and {case.name} have twins of the same name, {twin.name}"
        tracks = {_run("cases", case, case.track_of, direction) for direction in case.directions}
        if unknown := sorted(tracks.difference(op.tracks)):
            yield f"tracks lacks {unknown}, a track of {case.name}"


def _name_faults(cases: list[Case], tier: Tier) -> Iterator[str]:
    names = _run("cases", None, lambda: Counter(case.name for case in cases))
    for name, count in names.most_common(1):
        if count > 1:
            yield f"cases: {count} {tier} cases have the same name, {name}"


def _trial_faults(op: Op[Any]) -> Iterator[str]:
    smoke, board = (_run("cases", None, lambda tier: next(iter(op.cases(tier))), tier)
                    for tier in ("smoke", "board"))  # fmt: skip
    for case in (op.twin(board), smoke):
        arguments, upstream = _run("draw", case, draw, op, case, 0, "cpu")
    leaves: dict[str, torch.Tensor] = {}
    for name in op.differentiable:
        value = arguments.get(name)
        if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
            yield f"draw of {case.name}: {name} is {value!r}, not a floating tensor"
        else:
            leaves[name] = value.detach().requires_grad_()

    def call() -> tuple[torch.Tensor, tuple[torch.Tensor | None, ...]]:
        output = op.reference(**{**arguments, **leaves})
        inputs = [*leaves.values()]
        return output, torch.autograd.grad(output, inputs, upstream, allow_unused=True)

    output, gradients = _run("reference", case, call)
    if output.dtype != getattr(torch, case.dtype):
        yield f"reference of {case.name}: gives {output.dtype}, not the case's dtype"
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is None:
            yield f"differentiable: the reference gives {name} no gradient"
    declared = _run("output", case, op.output, case)
    if tuple(output.shape) != declared:
        yield f"output of {case.name}: is {declared}, the reference gives {tuple(output.shape)}"
    axes = _run("axes", case, op.axes, case, arguments)
    for name, tensor in {"output": output, **leaves}.items():
        if len(axes.get(name, ())) != tensor.dim():
            named = f"has {len(axes[name])} names" if name in axes else "has no entry"
            yield f"axes of {case.name}: {named} for {name!r}, of {tensor.dim()} dimensions"
    for direction in DIRECTIONS:
        work = _run("work", case, op.work, case, direction)
        if not isinstance(work, Work) or work.bytes < 0:
            yield f"work of {case.name}: is {work!r}, not a common.spec.Work"
    _run("workspace", case, op.workspace, case)
    _run("cases", case, facts_of, op, case)
