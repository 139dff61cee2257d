"""One solution's smoke cases under triton-viz, which takes a kernel's addresses for formulas.

`python -m common.sandbox.alone.symbolic FILE OP CASE...`, with TRITON_INTERPRET=1, says of each case, in a line
of JSON, which accesses z3 can lead out of their tensor, and what kept triton-viz from following
the kernels to their end. Apart from all that grades; see sanitize.py.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import triton
import triton_viz
from triton_viz.clients.sanitizer.sanitizer import SymbolicSanitizer
from triton_viz.core.callbacks import ForLoopCallbacks
from triton_viz.core.data import Store

from common import ops
from common.sandbox import failures
from common.sandbox.alone import solo
from common.spec import Case, Op

SECONDS = 10
"""For one case; a loop whose end is a formula has none."""


class Sanitizer(SymbolicSanitizer):  # type: ignore[misc]
    """That of triton-viz 3.0, mended where it accuses the innocent or passes somebody over."""

    def __init__(self) -> None:
        super().__init__(abort_on_error=False)

    def arg_callback(self, name: str, arg: Any, arg_cvt: Any) -> None:
        """A view begins at its pointer: its offset in the storage would be added once more."""
        super().arg_callback(name, _unshifted(arg), arg_cvt)

    def pre_run_callback(self, fn: Callable[..., Any]) -> bool:
        """Each launch is looked at: else one of the same shapes as an earlier one would not be."""
        return True

    def register_for_loop_callback(self) -> ForLoopCallbacks:
        """Turn by turn: a formula for the index forgets the loops around it, and the pointers that
        were moved with it."""
        hooks = super().register_for_loop_callback()
        return ForLoopCallbacks(range_wrapper_factory=hooks.range_wrapper_factory)


def _unshifted(arg: Any) -> Any:
    if not isinstance(arg, torch.Tensor):
        return arg
    storage = arg.untyped_storage()[arg.storage_offset() * arg.element_size() :]
    return arg.new_empty(0).set_(storage, 0, arg.shape, arg.stride())


def trace_all() -> list[Sanitizer]:
    """Have every kernel that is declared from now on looked at, each by one of these."""
    sanitizers: list[Sanitizer] = []
    jit = triton.jit

    def traced(function: Any = None, **options: Any) -> Any:
        if function is None:
            return lambda function: traced(function, **options)
        sanitizers.append(Sanitizer())
        return triton_viz.trace(sanitizers[-1])(jit(function, **options))

    triton.jit = traced
    return sanitizers


def look(path: Path, op: Op[Any], case: Case, answer: Connection) -> None:
    """Call forward and backward, and say what was found and what stopped it."""
    os.dup2(2, 1)  # what a solution prints is no result
    sanitizers = trace_all()
    stopped = ""
    try:
        call, wanted, upstream = solo.prepared(path, op, case, "cpu")
        output = call()
        if output.requires_grad:
            torch.autograd.grad(output, wanted, upstream, allow_unused=True)
    except BaseException as error:
        stopped = failures.judge(error)["reason"]
    found = [_told(record) for sanitizer in sanitizers for record in sanitizer.records]
    answer.send_bytes(json.dumps([list(dict.fromkeys(found)), stopped]).encode())


def _told(record: Any) -> str:
    does = "writes" if issubclass(record.op_type, Store) else "reads"
    text = f"{does} outside of {record.tensor_name}"
    if not record.user_code_tracebacks:
        return text
    where = record.user_code_tracebacks[0]  # the innermost
    line = (where.line_of_code or "").strip()
    return f"{text}, line {where.lineno} of {Path(where.filename).name}: {line}"


def findings(path: Path, op: Op[Any], case: Case) -> tuple[list[str], str]:
    """What was found, and why it could not be followed to its end, if so; in a process of its own,
    since the tool keeps what it has seen."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=look, args=(path, op, case, there))
    process.start()
    there.close()
    try:
        if not here.poll(SECONDS):
            return [], f"no end within {SECONDS} s"
        found, stopped = json.loads(here.recv_bytes())
        return found, stopped
    except EOFError:
        process.join()
        return [], f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def main(path: str, op_name: str, *names: str) -> None:
    op = ops.load(op_name)
    cases = {case.name: case for case in op.cases("smoke")}
    for name in names:
        found, stopped = findings(Path(path), op, cases[name])
        print(json.dumps({"case": name, "found": found, "stopped": stopped}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
