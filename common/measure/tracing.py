"""A trace of a few calls, which no board shows."""

from __future__ import annotations

from typing import Any

from common.grading.worker import Worker
from common.measure.laid_calls import lay_calls
from common.spec import Case, Direction, Op
from common.wire import Reply


def trace_case(op: Op[Any], case: Case, device: str, worker: Worker, direction: Direction) -> Reply:
    """Return `{"trace": ...}`, a Chrome trace of a few calls, or a verdict with its reason."""
    (call,) = lay_calls(op, case, device, worker, 1).calls
    return worker.ask("trace", call=call, backward=direction == "backward")
