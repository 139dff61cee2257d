"""One solution's smoke cases under triton-viz, which treats a kernel's addresses as formulas.

`python -m common.sandbox.standalone.symbolic FILE OP CASE...`, with TRITON_INTERPRET=1, prints one
line of JSON for each case. `found` lists the accesses that z3 can lead outside their tensor;
`stopped` is the reason why triton-viz could not follow the kernels to their end, or "".
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
"""The time limit for one case in seconds, since a loop whose bound is a formula never ends."""


class Sanitizer(SymbolicSanitizer):  # type: ignore[misc]
    """triton-viz 3.0's sanitizer, patched where it reports a correct kernel or skips one."""

    def __init__(self) -> None:
        """Collect every access that leaves its tensor instead of ending at the first."""
        super().__init__(abort_on_error=False)

    def arg_callback(self, name: str, arg: Any, arg_cvt: Any) -> None:
        """Pass a view as an independent tensor, since its storage offset would be added twice."""
        super().arg_callback(name, _unshifted(arg), arg_cvt)

    def pre_run_callback(self, fn: Callable[..., Any]) -> bool:
        """Check every launch, including launches with the shapes of an earlier one."""
        return True

    def register_for_loop_callback(self) -> ForLoopCallbacks:
        """Run a loop iteration by iteration.

        With a formula for the index, triton-viz loses the outer loops and the pointers that the
        loop advances.
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


def check(path: Path, op: Op[Any], case: Case, sender: Connection) -> None:
    """Call forward and backward; send the accesses found and the reason why the calls stopped."""
    os.dup2(2, 1)  # a solution's own prints must not mix with the results
    sanitizers = trace_all()
    stopped = ""
    try:
        solo.call(path, op, case, "cpu")
    except BaseException as error:
        stopped = failures.judge(error)["reason"]
    found = [_described(record) for sanitizer in sanitizers for record in sanitizer.records]
    sender.send_bytes(json.dumps([list(dict.fromkeys(found)), stopped]).encode())


def _described(record: Any) -> str:
    verb = "writes" if issubclass(record.op_type, Store) else "reads"
    text = f"{verb} outside of {record.tensor_name}"
    if not record.user_code_tracebacks:
        return text
    frame = record.user_code_tracebacks[0]  # the innermost
    line = (frame.line_of_code or "").strip()
    return f"{text}, line {frame.lineno} of {Path(frame.filename).name}: {line}"


def findings(path: Path, op: Op[Any], case: Case) -> tuple[list[str], str]:
    """Check one case in its own process, since the tool keeps state between calls.

    Returns:
        The accesses that may leave their tensor, and why the check stopped early, or "".
    """
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=check, args=(path, op, case, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return [], f"no end within {SECONDS} s"
        found, stopped = json.loads(receiver.recv_bytes())
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
