"""One call as the harness lays it in shared memory and as a solution's process is told of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from common.arena import Slot
from common.grading.problem import Problem
from common.spec import Op
from common.wire import Reply


def call_tensors(arguments: dict[str, Any], upstream: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {name: v for name, v in arguments.items() if isinstance(v, torch.Tensor)}
    return {**tensors, "upstream": upstream}


def result_slots(
    problem: Problem, names: Iterable[str], attempts: Sequence[int] = (0,)
) -> dict[str, torch.Tensor]:
    """`NAME ATTEMPT`: what room each result takes, without any memory."""
    dtype = getattr(torch, problem.case.dtype)
    return {
        f"{name} {attempt}": torch.empty(problem.truth[name].shape, dtype=dtype, device="meta")
        for name in names
        for attempt in attempts
    }


def call_json(op: Op[Any], arguments: dict[str, Any], slots: dict[str, Slot]) -> Reply:
    """One call as its worker is told of it: only the options that are not left at their default."""
    contract = inspect.signature(op.interface.__call__).parameters
    tensors = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    return {
        "tensors": {name: slots[name].json() for name in tensors},
        "optional": [name for name in tensors if contract[name].default is not inspect._empty],
        "options": {
            name: value
            for name, value in arguments.items()
            if name not in tensors and value != contract[name].default
        },
        "differentiable": list(op.differentiable),
        "changing": list(op.changing),
        "upstream": slots["upstream"].json(),
    }
