"""One solution's smoke cases on a GPU, run under compute-sanitizer.

`python -m common.sandbox.standalone.smoke FILE OP CASE...` calls forward and backward of each case
and prints `called`, or the reason why the call failed, for each case. `common/tools/sanitizers.py`
starts it. The process has to end by itself, since the tool reports only when its process ends.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from common import ops
from common.sandbox import failures
from common.sandbox.standalone import solo
from common.spec import Case, Op


def call(path: Path, op: Op[Any], case: Case, device: str) -> str:
    """Call forward and backward; return `called`, or the reason why the call failed."""
    try:
        solo.call(path, op, case, device)
        if device == "cuda":
            torch.cuda.synchronize()
    except BaseException as error:
        return str(failures.judge(error)["reason"])
    return "called"


def main(path: str, op_name: str, *names: str) -> None:
    """Call the named smoke cases one after the other, and print a line for each."""
    torch.cuda.init()  # the tool reports nothing about a process without a CUDA context
    op = ops.load(op_name)
    cases = {case.name: case for case in op.cases("smoke")}
    for name in names:
        print(f"{name}: {call(Path(path), op, cases[name], 'cuda')}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
