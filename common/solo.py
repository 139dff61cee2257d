"""One call of a solution in a process by itself, for Nsight Compute to look at; see profile.py.

`python -m common.solo FILE OP CASE DIRECTION`
"""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from typing import Any

import torch

from common import inside, ops
from common.measure import clock
from common.problem import draw
from common.spec import Op

WARM_UP_CALLS = 3


def prepared(path: Path, op: Op[Any], case_name: str, direction: str, device: str) -> clock.Run:
    """The call of that board case, its inputs drawn."""
    case = next(case for case in op.board(device) if case.name == case_name)
    function = inside.load(path, op)
    arguments, upstream = draw(op, case, 0, device)
    wanted = [arguments[name].requires_grad_() for name in op.differentiable]
    contract = inspect.signature(op.interface.__call__).parameters
    given = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor) or value != contract[name].default
    }
    call = functools.partial(function, **given)
    return clock.as_run((call, wanted, upstream), direction == "backward")


def main(path: str, op_name: str, case_name: str, direction: str) -> None:
    run = prepared(Path(path), ops.load(op_name), case_name, direction, "cuda")
    for _ in range(WARM_UP_CALLS):
        run()
    torch.cuda.synchronize()
    with torch.cuda.profiler.profile():
        run()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:])
