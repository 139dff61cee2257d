"""Whether an op's file is whole: faults as a line that names the file, the field and the cause."""

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
"""The fields of an op that are called."""
NAMES = ("differentiable", "tracks", "movable")
"""The fields that hold names."""


class _Fault(Exception):
    """A field of an op is wrong."""


def checked(name: str, load: Callable[[], ModuleType]) -> Op[Any] | str:
    """Return the OP of a module after a look at its fields and its board, without any tensor.

    Args:
        name: The name of the op's file.
        load: Import the file.
    """
    try:
        op = _imported(name, load)
        _check_fields(op, name)
        _check_board(op)
    except _Fault as fault:
        return f"{shown(OPS / f'{name}.py')}{fault}"
    return op


def tried(op: Op[Any]) -> str:
    """Return what is wrong with an op whose first twin and first smoke case are drawn; "" if right.

    The reference answers the smoke case on a CPU, in both directions.
    """
    try:
        for case in (op.twin(_first(op, "board")), _first(op, "smoke")):
            with _about("draw", case):
                arguments, upstream = draw(op, case, 0, "cpu")
        _try(op, case, arguments, upstream)
    except _Fault as fault:
        return f"{shown(OPS / f'{op.name}.py')}{fault}"
    return ""


def listed(op: Op[Any], tier: Tier, device: str) -> list[Case] | str:
    """Return the cases of a tier as the device runs them, or what is wrong with them."""
    try:
        with _about("cases"):
            cases: list[Case] = list(op.tier(tier, device))
        _check_names(cases, tier)
    except _Fault as fault:
        return f"{shown(OPS / f'{op.name}.py')}{fault}"
    return cases


@contextmanager
def _about(field: str, case: Case | None = None) -> Iterator[None]:
    """Raise any error as a fault of the field."""
    try:
        yield
    except _Fault:
        raise
    except Exception as error:
        of = f" of {case.name}" if case else ""
        raise _Fault(f": OP.{field}{of}: {type(error).__name__}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _imported(name: str, load: Callable[[], ModuleType]) -> Op[Any]:
    try:
        module = load()
    except Exception as error:
        entries = traceback.extract_tb(error.__traceback__)
        lines = [entry.lineno for entry in entries if entry.filename == str(OPS / f"{name}.py")]
        where = f", line {lines[-1]}" if lines else ""
        raise _Fault(f"{where}: {type(error).__name__}: {_line(error)}") from None
    if not isinstance(module.OP, Op):
        raise _Fault(f": OP is of {type(module.OP).__name__}, not of common.spec.Op")
    return module.OP


def _check_fields(op: Op[Any], name: str) -> None:
    def check(field: str, right: bool, cause: str) -> None:
        if not right:
            raise _Fault(f": OP.{field} {cause}")

    check("name", op.name == name, f"is {op.name!r}, not the file's name")
    for field in FUNCTIONS:
        value = getattr(op, field)
        check(field, callable(value), f"is {value!r}, and is to be called")
    for field in NAMES:
        value = getattr(op, field)
        right = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
        check(field, right, f"is {value!r}, no tuple of names: ('x',) has a comma")
    stated = vars(op.interface).get("__call__") if isinstance(op.interface, type) else None
    check("interface", stated is not None, "is no typing.Protocol with a `__call__`")
    known = [*inspect.signature(op.interface.__call__).parameters][1:]
    theirs = [*inspect.signature(op.reference).parameters]
    check("reference", theirs == known, f"takes {theirs}, the interface {known}")
    check("tracks", bool(op.tracks), "is empty: the first is the main one")
    check("differentiable", bool(op.differentiable), "is empty")
    for field in ("differentiable", "movable"):
        unknown = set(getattr(op, field)).difference(known)
        check(field, not unknown, f"names {sorted(unknown)}; the arguments are {known}")
    unknown = set(op.split.arguments).difference(known)
    check("split", not unknown, f"names {sorted(unknown)}; the arguments are {known}")
    lacking = ITEMSIZE.keys() - op.slack.keys()
    check("slack", not lacking, f"lacks {sorted(lacking)}")


def _check_board(op: Op[Any]) -> None:
    with _about("cases"):
        board = list(op.cases("board"))
    if not board:
        raise _Fault(": OP.cases: the board has none")
    _check_names(board, "board")
    twins: dict[str, str] = {}
    for case in board:
        with _about("twin", case):
            twin = op.twin(case)
            if not twin.twin:
                raise _Fault(f": OP.twin of {case.name}: `twin` is not true")
            other = twins.setdefault(twin.name, case.name)
        if other != case.name:
            pair = f"{other} and {case.name}"
            raise _Fault(f": OP.twin: {pair} have twins of one name, {twin.name}")
        with _about("cases", case):
            tracks = {case.track_of(direction) for direction in case.directions}
        if unknown := tracks.difference(op.tracks):
            raise _Fault(f": OP.tracks: {case.name} is of {sorted(unknown)}, not of {op.tracks}")


def _check_names(cases: list[Case], tier: Tier) -> None:
    with _about("cases"):
        ((name, times),) = Counter(case.name for case in cases).most_common(1) or [("", 0)]
    if times > 1:
        raise _Fault(f": OP.cases: {times} cases of {tier} have one name, {name}")


def _first(op: Op[Any], tier: Tier) -> Any:
    with _about("cases"):
        first = next(iter(op.cases(tier)), None)
    if first is None:
        raise _Fault(f": OP.cases: {tier} has none")
    return first


def _try(op: Op[Any], case: Case, arguments: Mapping[str, Any], upstream: torch.Tensor) -> None:
    leaves: dict[str, torch.Tensor] = {}
    for name in op.differentiable:
        value = arguments.get(name)
        if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
            raise _Fault(f": OP.draw of {case.name}: {name}, which takes a gradient, is {value!r}")
        leaves[name] = value.detach().requires_grad_()
    with _about("reference", case):
        output = op.reference(**{**arguments, **leaves})
        gradients = torch.autograd.grad(output, [*leaves.values()], upstream, allow_unused=True)
    with _about("output", case):
        shape, stated = tuple(output.shape), op.output(case)
    if shape != stated:
        raise _Fault(f": OP.output of {case.name}: is {stated}, the reference gives {shape}")
    if output.dtype != getattr(torch, case.dtype):
        raise _Fault(f": OP.reference of {case.name}: gives {output.dtype}, not the case's dtype")
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is None:
            raise _Fault(f": OP.differentiable: the reference gives {name} no gradient")
    with _about("axes", case):
        axes = op.axes(case, arguments)
        dims = {"output": output.dim()} | {name: value.dim() for name, value in leaves.items()}
    for name, count in dims.items():
        if len(axes.get(name, ())) != count:
            found = f"names {len(axes[name])}" if name in axes else "has no entry"
            raise _Fault(f": OP.axes of {case.name}: {found} for {name!r}, of {count} dimensions")
    with _about("facts", case):
        dict(op.facts(case))
    for direction in DIRECTIONS:
        with _about("work", case):
            work = op.work(case, direction)
        if not isinstance(work, Work) or work.bytes < 0:
            raise _Fault(f": OP.work of {case.name}: is {work!r}, no common.spec.Work")
    with _about("workspace", case):
        int(op.workspace(case))
