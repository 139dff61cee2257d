"""The verdict and the reason that an exception in a solution's process stands for."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from common.errors import is_out_of_memory, out_of_memory
from common.wire import Reply

LONGEST_REASON = 400
"""Characters of an exception's text that a reason keeps."""


class Refused(Exception):
    """A verdict that the solution's own process reaches, with its reason."""

    def __init__(self, verdict: str, reason: str) -> None:
        """Keep the verdict, one of `common.verdicts`, and one line of reason."""
        super().__init__(reason)
        self.verdict, self.reason = verdict, reason


def judge(error: BaseException) -> Reply:
    """Return the verdict that an exception stands for, with one line of reason."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, Refused):
            return {"verdict": cause.verdict, "reason": cause.reason}
        # torch raises the same for a dtype that one of its functions does not take
        if isinstance(cause, NotImplementedError) and "not implemented for '" not in str(cause):
            return {"verdict": "UNSUPPORTED", "reason": _line(str(cause) or "not implemented")}
        if isinstance(cause, CompilationError | OutOfResources | PTXASError):
            reason = f"a kernel does not compile: {describe(cause)}"
            return {"verdict": "COMPILE_ERROR", "reason": reason}
        if isinstance(cause, RuntimeError) and is_out_of_memory(str(cause)):
            return {"verdict": "RUNTIME_ERROR", "reason": out_of_memory(str(cause))}
    return {"verdict": "RUNTIME_ERROR", "reason": describe(causes[-1])}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def describe(error: BaseException) -> str:
    """Return the exception as one line: `ValueError: bad width, line 12 of rope.py`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _theirs(frame)]
    where = f", line {frames[-1].lineno} of {Path(frames[-1].filename).name}" if frames else ""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    return _line(f"{type(error).__name__}: {text}") + where


def _theirs(frame: traceback.FrameSummary) -> bool:
    """Return whether the frame is in the solution's folder, the first on the path."""
    return frame.filename.startswith(sys.path[0])


def _line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_REASON]
