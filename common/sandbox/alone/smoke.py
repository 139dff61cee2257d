"""One solution's smoke cases on a GPU, for compute-sanitizer to look at; see sanitize.py.

`python -m common.sandbox.alone.smoke FILE OP CASE...` calls forward and backward of each case, and says what kept
it from one. It ends by itself, since the tool tells of a process only when that does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from common import ops
from common.sandbox import failures
from common.sandbox.alone import solo
from common.spec import Case, Op


def call(path: Path, op: Op[Any], case: Case, device: str) -> str:
    """`called`, which sanitize.py counts, or why not."""
    try:
        forward, wanted, upstream = solo.prepared(path, op, case, device)
        output = forward()
        if output.requires_grad:
            torch.autograd.grad(output, wanted, upstream, allow_unused=True)
        if device == "cuda":
            torch.cuda.synchronize()
    except BaseException as error:
        return str(failures.judge(error)["reason"])
    return "called"


def main(path: str, op_name: str, *names: str) -> None:
    torch.cuda.init()  # else the tool has nothing to tell of who fails before
    op = ops.load(op_name)
    cases = {case.name: case for case in op.cases("smoke")}
    for name in names:
        print(f"{name}: {call(Path(path), op, cases[name], 'cuda')}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
