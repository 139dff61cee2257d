"""The slots of calls in shared memory, and the JSON that describes a call to a process."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common.arena import Arena, Slot, lay_out
from common.grading.problem import Problem
from common.grading.worker import Worker
from common.spec import Op
from common.wire import GARBAGE, Reply

Drawn = tuple[dict[str, Any], torch.Tensor]
"""The arguments of one call, and its upstream gradient."""
ResultKey = tuple[str, int]
"""The name of a result (`output`, or an argument whose gradient it is), and the attempt."""


@dataclass(frozen=True)
class CallSlots:
    """The places of one call's tensors in the shared memory."""

    inputs: dict[str, Slot]
    """By argument; the upstream gradient is `upstream`."""
    results: dict[ResultKey, Slot]


def call_tensors(arguments: dict[str, Any], upstream: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors among a call's arguments, and the upstream gradient, by name."""
    tensors = {name: v for name, v in arguments.items() if isinstance(v, torch.Tensor)}
    return {**tensors, "upstream": upstream}


def result_slots(
    problem: Problem, names: Iterable[str], attempts: Sequence[int] = (0,)
) -> dict[ResultKey, torch.Tensor]:
    """Return a tensor without memory for each result, from which its slot is laid out."""
    dtype, shapes = getattr(torch, problem.case.dtype), problem.shapes
    return {
        (name, attempt): torch.empty(shapes[name], dtype=dtype, device="meta")
        for name in names
        for attempt in attempts
    }


def reserve(
    worker: Worker,
    calls: Sequence[Mapping[str, torch.Tensor]],
    results: Sequence[Mapping[ResultKey, torch.Tensor]],
) -> tuple[Arena, list[CallSlots]]:
    """Reserve shared memory for the inputs of several calls and for the results of each.

    The memory of the results is filled with GARBAGE, that of the inputs holds anything.
    """
    laid = lay_out(
        ((index, key), tensor)
        for index, (inputs, wanted) in enumerate(zip(calls, results, strict=True))
        for key, tensor in (*inputs.items(), *wanted.items())
    )
    slots = [
        CallSlots(
            {name: laid[index, name] for name in inputs},
            {key: laid[index, key] for key in wanted},
        )
        for index, (inputs, wanted) in enumerate(zip(calls, results, strict=True))
    ]
    arena = worker.arena(max(slot.end for slot in laid.values()))
    for call in slots:
        for slot in call.results.values():
            arena.bytes_of(slot).fill_(GARBAGE)
    return arena, slots


def call_json(op: Op[Any], arguments: dict[str, Any], slots: dict[str, Slot]) -> Reply:
    """Describe a call to the solution's process, with the options that differ from their default.

    Args:
        op: The operation.
        arguments: The arguments of the call.
        slots: The slot of each input, the upstream gradient's too.
    """
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
        "changing": _changing(op, slots),
        "upstream": slots["upstream"].json(),
    }


def _changing(op: Op[Any], slots: Mapping[str, Slot]) -> dict[str, int]:
    """Return the inputs whose elements may change places, and how many must stay together.

    Any element may move, but a `movable` argument's move by slices along its first dimension.
    For example `{"t": 1, "upstream": 1, "freqs": 64}`.
    """
    units = dict.fromkeys((*op.differentiable, "upstream"), 1)
    for name in op.movable:
        slot = slots[name]
        unit, count = slot.stride[0], slot.nbytes // getattr(torch, slot.dtype).itemsize
        if unit and count % unit == 0:
            units[name] = unit
    return units
