"""One solution in a process by itself, for NVIDIA's tools and triton-viz to look at.

`python -m common.sandbox.alone.solo FILE OP CASE DIRECTION` is one call for Nsight Compute; see profile.py.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import ops
from common.ops._draw import draw
from common.sandbox import clock
from common.sandbox.contract import load, named_options
from common.spec import Case, Op

WARM_UP_CALLS = 3
Call = tuple[Callable[[], torch.Tensor], list[torch.Tensor], torch.Tensor]
"""What returns the output, the inputs that take a gradient, and the upstream gradient."""


def prepared(path: Path, op: Op[Any], case: Case, device: str) -> Call:
    """The call of that case, its inputs drawn; Refused where the solution lacks an option."""
    function = load(path, op)
    arguments, upstream = draw(op, case, 0, device)
    wanted = [arguments[name].requires_grad_() for name in op.differentiable]
    contract = inspect.signature(op.interface.__call__).parameters
    given = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor) or value != contract[name].default
    }
    call = functools.partial(function, **named_options(function, given))
    return call, wanted, upstream


def main(path: str, op_name: str, case_name: str, direction: str) -> None:
    op = ops.load(op_name)
    case = next(case for case in op.board("cuda") if case.name == case_name)
    run = clock.as_run(prepared(Path(path), op, case, "cuda"), direction == "backward")
    for _ in range(WARM_UP_CALLS):
        run()
    torch.cuda.synchronize()
    with torch.cuda.profiler.profile():
        run()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:])
