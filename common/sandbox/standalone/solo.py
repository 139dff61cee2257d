"""One solution in a process by itself, run under NVIDIA's tools and triton-viz.

`python -m common.sandbox.standalone.solo FILE OP CASE DIRECTION` makes one call under Nsight
Compute; `common/tools/ncu.py` starts it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import ops
from common.ops._draw import draw
from common.sandbox import backend, timed_callables
from common.sandbox.contract import given, load, named_options
from common.spec import Case, Op

WARM_UP_CALLS = 3
PreparedCall = tuple[Callable[[], torch.Tensor], list[torch.Tensor], torch.Tensor]
"""The call that returns the output, the inputs that need a gradient, and the upstream gradient."""


def prepared(path: Path, op: Op[Any], case: Case, device: str) -> PreparedCall:
    """Load the solution and draw the case's inputs for one call.

    Options with their default value are not passed, so that a solution need not name them.

    Raises:
        Refused: The solution does not load, or does not take an option of the case.
    """
    backend.keep_settings()
    function = load(path, op)
    arguments, grad_output = draw(op, case, 0, device)
    differentiable = [arguments[name].requires_grad_() for name in op.differentiable]
    inputs, options = given(op, arguments)
    call = functools.partial(function, *inputs, **named_options(function, options))
    return call, differentiable, grad_output


def call(path: Path, op: Op[Any], case: Case, device: str) -> None:
    """Call forward and backward of a case once."""
    forward, differentiable, grad_output = prepared(path, op, case, device)
    output = forward()
    if output.requires_grad:
        torch.autograd.grad(output, differentiable, grad_output, allow_unused=True)


def main(path: str, op_name: str, case_name: str, direction: str) -> None:
    """Warm up, then make one call of a board case between the profiler's start and stop."""
    op = ops.load(op_name)
    case = next(case for case in op.board("cuda") if case.name == case_name)
    run = timed_callables.as_run(prepared(Path(path), op, case, "cuda"), direction == "backward")
    for _ in range(WARM_UP_CALLS):
        run()
    torch.cuda.synchronize()
    with torch.cuda.profiler.profile():
        run()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:])
