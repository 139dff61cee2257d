"""One solution's smoke cases under triton-viz, which treats a kernel's addresses as formulas.

`python -m common.sandbox.standalone.symbolic FILE OP CASE...`, with TRITON_INTERPRET=1, prints one
line of JSON for each case: `found`, the accesses for which z3 finds values that lead out of their
tensor, and `stopped`, the reason why triton-viz could not follow the kernels to their end, if any.
`common/tools/sanitizers.py` starts it; nothing here grades.
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
from common.sandbox.standalone import solo
from common.spec import Case, Op

SECONDS = 10
"""The time for one case, since a loop whose end is a formula never ends."""


class Sanitizer(SymbolicSanitizer):  # type: ignore[misc]
    """triton-viz 3.0's sanitizer, patched where it reports a correct kernel or skips one."""

    def __init__(self) -> None:
        """Collect every access that leaves its tensor instead of ending at the first."""
        super().__init__(abort_on_error=False)

    def arg_callback(self, name: str, arg: Any, arg_cvt: Any) -> None:
        """Pass a view as a tensor of its own, since its storage offset would be added twice."""
        super().arg_callback(name, _unshifted(arg), arg_cvt)

    def pre_run_callback(self, fn: Callable[..., Any]) -> bool:
        """Check every launch, also one that has the shapes of an earlier launch."""
        return True

    def register_for_loop_callback(self) -> ForLoopCallbacks:
        """Follow a loop one iteration after the other.

        A formula for its index loses the loops around it, and the pointers that moved with it.
        """
        hooks = super().register_for_loop_callback()
        return ForLoopCallbacks(range_wrapper_factory=hooks.range_wrapper_factory)


def _unshifted(arg: Any) -> Any:
    if not isinstance(arg, torch.Tensor):
        return arg
    storage = arg.untyped_storage()[arg.storage_offset() * arg.element_size() :]
    return arg.new_empty(0).set_(storage, 0, arg.shape, arg.stride())


def trace_all() -> list[Sanitizer]:
    """Patch `triton.jit`, so that each kernel declared from now on gets a sanitizer of its own.

    Returns:
        The sanitizers; the list grows as kernels are declared.
    """
    sanitizers: list[Sanitizer] = []
    jit = triton.jit

    def traced(function: Any = None, **options: Any) -> Any:
        if function is None:
            return lambda function: traced(function, **options)
        sanitizers.append(Sanitizer())
        return triton_viz.trace(sanitizers[-1])(jit(function, **options))

    triton.jit = traced
    return sanitizers


def check(path: Path, op: Op[Any], case: Case, answer: Connection) -> None:
    """Call forward and backward, and send what was found and what stopped the calls."""
    os.dup2(2, 1)  # a solution's own prints must not mix with the results
    sanitizers = trace_all()
    stopped = ""
    try:
        solo.call(path, op, case, "cpu")
    except BaseException as error:
        stopped = failures.judge(error)["reason"]
    found = [_described(record) for sanitizer in sanitizers for record in sanitizer.records]
    answer.send_bytes(json.dumps([list(dict.fromkeys(found)), stopped]).encode())


def _described(record: Any) -> str:
    does = "writes" if issubclass(record.op_type, Store) else "reads"
    text = f"{does} outside of {record.tensor_name}"
    if not record.user_code_tracebacks:
        return text
    where = record.user_code_tracebacks[0]  # the innermost
    line = (where.line_of_code or "").strip()
    return f"{text}, line {where.lineno} of {Path(where.filename).name}: {line}"


def findings(path: Path, op: Op[Any], case: Case) -> tuple[list[str], str]:
    """Check one case in a process of its own, since the tool keeps state between calls.

    Returns:
        The accesses that may leave their tensor, and why the check stopped early, "" if it did not.
    """
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=check, args=(path, op, case, there))
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
    """Check the named smoke cases one after the other, and print a line of JSON for each."""
    op = ops.load(op_name)
    cases = {case.name: case for case in op.cases("smoke")}
    for name in names:
        found, stopped = findings(Path(path), op, cases[name])
        print(json.dumps({"case": name, "found": found, "stopped": stopped}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
