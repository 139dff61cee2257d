"""Validation of an op's file: a fault is a line that names the file and the cause."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from common.errors import UserError
from common.gradients import derivatives, outputs_of
from common.interfaces import shown
from common.ops._draw import draw, facts_of
from common.paths import OPS
from common.printable import complain_once
from common.spec import OUTPUT, UPSTREAM, Case, Op, Tier, is_output


@contextmanager
def faults_of(name: str) -> Iterator[None]:
    """Raise each error as a UserError, in a line with the op's file and its last line of code."""
    path = OPS / f"{name}.py"
    try:
        yield
    except UserError as fault:
        raise UserError(f"{shown(path)}: {fault}") from None
    except Exception as error:
        entries = traceback.extract_tb(error.__traceback__)
        lines = [entry.lineno for entry in entries if entry.filename == str(path)]
        place = f"{shown(path)}, line {lines[-1]}" if lines else shown(path)
        reason = " ".join(str(error).split())
        raise UserError(f"{place}: {type(error).__name__}: {reason}") from error


def check(name: str, op: Any) -> Op[Any]:
    """Check the fields of a file's OP, without creating a tensor; leave impossible cases out.

    Raises:
        UserError: A field is invalid.
    """
    _require(isinstance(op, Op), f"OP is a {type(op).__name__}, not a common.spec.Op")
    _require(op.name == name, f"OP.name is {op.name!r}, not the file's name")
    known = [*inspect.signature(op.interface.__call__).parameters][1:]
    parameters = [*inspect.signature(op.reference).parameters]
    _require(parameters == known, f"OP.reference takes {parameters}, the interface {known}")
    taken = [name for name in known if name.startswith((OUTPUT, UPSTREAM))]
    _require(not taken, f"the interface takes {taken}: results and their gradients have such names")
    unknown = sorted({*op.differentiable}.difference(known))
    _require(not unknown, f"OP.differentiable names {unknown}; the arguments are {known}")
    board = _distinct(op.cases("board"), "board")
    faults: dict[str, Exception] = {}
    for case in board:
        try:
            case.settled()
            op.timed_work(case, "backward")
        except Exception as fault:
            faults[case.name] = fault
            if len(faults) == len(board):
                raise
            complain_once(f"{shown(OPS / f'{name}.py')}: {case.name} is left out: {fault!r}")
            continue
        track = op.track_of(case)
        _require(track in op.tracks, f"OP.tracks lacks {track!r}, the track of {case.name}")
    _require(board, "OP.cases: the board has no case")
    possible = lambda tier: (each for each in op.cases(tier) if each.name not in faults)  # noqa: E731
    return dataclasses.replace(op, cases=possible) if faults else op


@functools.cache
def check_by_trial(op: Op[Any], *tiers: Tier) -> None:
    """Draw the first twin, run the reference on the first smoke case, and yield the tiers' cases.

    Raises:
        UserError: Results or functions of the op contradict its fields.
    """
    draw(op, op.twin(next(iter(op.cases("board")))), 0, "cpu")
    case = next(iter(op.cases("smoke")))
    arguments, upstream = draw(op, case, 0, "cpu")
    leaves = {name: arguments[name].detach().requires_grad_() for name in op.differentiable}
    outputs = outputs_of(op.reference(**{**arguments, **leaves}))
    given = [(each.dtype, *each.shape) for each in outputs]
    stated = [(each.dtype, *each.shape) for each in upstream.values()]
    _require(given == stated, f"OP.reference of {case.name}: gives {given}, not {stated}")
    names, split = [*op.outputs(case)], [*filter(is_output, op.split)]
    _require(split == names, f"OP.split has the outputs {split}, not {names}")
    gradients = derivatives(outputs, [*leaves.values()], upstream.values())
    for name, gradient in zip(leaves, gradients, strict=True):
        _require(gradient is not None, f"OP.differentiable: the reference gives {name} no gradient")
    axes = op.axes(case, arguments)
    for name, tensor in {**dict(zip(names, outputs, strict=True)), **leaves}.items():
        fault = f"OP.axes of {case.name}: {name!r} has {tensor.dim()} dimensions"
        _require(len(axes.get(name, ())) == tensor.dim(), fault)
    op.timed_work(case, "backward")
    op.workspace(case)
    facts_of(op, case)
    for tier in tiers:
        _distinct(op.cases(tier), tier)


def _distinct(cases: Iterable[Case], tier: Tier) -> list[Case]:
    """Return the cases, equal ones once.

    Raises:
        UserError: Two cases have the same name.
    """
    cases = [*dict.fromkeys(cases)]
    for name, count in Counter(case.name for case in cases).most_common(1):
        _require(count == 1, f"OP.cases: {count} {tier} cases have the same name, {name}")
    return cases


def _require(condition: object, fault: str) -> None:
    if not condition:
        raise UserError(fault)
