"""One solution in a process by itself, which a tool of NVIDIA's examines.

`python -m common.sandbox.standalone FILE OP CASE...` calls each case forward and backward, and
prints a line for it. compute-sanitizer reports when the process ends.
"""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path
from typing import Any

import torch

from common import ops
from common.gradients import derivatives, outputs_of
from common.ops._draw import draw, given
from common.sandbox import backend, failures
from common.sandbox.contract import load
from common.spec import Case, Op


def call(path: Path, op: Op[Any], case: Case, device: str) -> None:
    """Call a solution, and differentiate its output if it can be."""
    arguments, upstream = draw(op, case, 0, device)
    differentiable = [arguments[name].requires_grad_() for name in op.differentiable]
    inputs, options = given(op, arguments)
    outputs = outputs_of(load(path, op).call(inputs.values(), options)())
    if any(output.requires_grad for output in outputs):
        derivatives(outputs, differentiable, upstream.values())


def main(path: str, op_name: str, *names: str) -> None:
    """Call each case, and print `called` or the reason why the call failed."""
    faulthandler.dump_traceback_later(900, exit=True)  # seconds
    torch.cuda.init()  # compute-sanitizer reports nothing about a process without a CUDA context
    backend.keep_settings()
    op = ops.load(op_name)
    cases = {case.name: case for case in (*op.cases("smoke"), *op.cases("board"))}
    for name in names:
        try:
            call(Path(path), op, cases[name], "cuda")
            torch.cuda.synchronize()
            print(f"{name}: called", flush=True)
        except BaseException as error:
            print(f"{name}: {failures.judge(error)['reason']}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
