"""The results of timed calls, compared with the oracle's."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from common.arena import shifted
from common.grading import oracle
from common.grading.problem import Problem
from common.grading.tolerance import check_values
from common.grading.worker import Worker
from common.measure.timed_process import Failed, Kept, TimedProcess
from common.ops._draw import draw


def check_results(problem: Problem, worker: Worker, timed: TimedProcess) -> str | None:
    """Compare the kept results of timed calls; describe the first wrong one of a graph's replays.

    A replay is no call of the solution: its graph reads what the solution kept at the capture, such
    as tables, though the inputs have changed since.

    Raises:
        Failed: The process has answered out of turn, or a timed call wrongly.
    """
    # a reply that the solution wrote itself has left the process's own unread
    if (settled := worker.ask("settle")).get("verdict"):
        raise Failed.told(settled)
    if reason := timed.changed():
        raise Failed("MUTATED_INPUT", reason)
    worker.release()  # the oracle needs the memory
    calls = dict(timed.kept)
    replays = calls.pop("graph", [])
    for kept in itertools.chain(*calls.values()):
        if reason := _wrong(problem, kept):
            raise Failed("INCORRECT_NUMERICAL", reason)
    return next(filter(None, (_wrong(problem, kept) for kept in replays)), None)


def _wrong(problem: Problem, kept: Kept) -> str | None:
    """Describe the first wrong value of a timed call."""
    drawn = draw(problem.op, problem.case, kept.seed, problem.device)
    arguments, upstream = _as_they_were(kept, *drawn)
    del drawn
    gradients = len(kept.results) > 1
    truth = oracle.truth(problem.op, arguments, upstream, gradients)
    for name, result in kept.results.items():
        if truth[name].numel():
            found, _ = check_values(
                result, truth[name], problem.budgets[name], problem.slack, problem.device
            )
            if found:
                return f"{name} of a timed call at {list(found.index)}: {found.text}"
    return None


def _as_they_were(
    kept: Kept, arguments: dict[str, Any], upstream: torch.Tensor
) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the inputs of a timed call, shifted as they were when it was made."""
    inputs = {**arguments, "upstream": upstream}
    for name, unit in kept.changing.items():
        tensor = inputs[name]
        moved = shifted(tensor, kept.shift * unit).view(tensor.dtype)
        inputs[name] = moved.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return inputs, inputs.pop("upstream")
