"""The verdict and the reason of an exception in a solution's process."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from triton.compiler import compiler
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from common import source
from common.errors import IN_A_GRAPH, NO_ROOM, Kind, kind_of, out_of_memory
from common.sandbox import backend
from common.verdicts import Failure
from common.wire import Reply

LONGEST_REASON = 400
"""The maximum number of characters that a reason quotes of an exception's text."""


class Refused(Failure):
    """A verdict that the solution's process itself gives, with its reason."""


def judge(error: BaseException) -> Reply:
    """Return the verdict of an exception, with a reason of one line."""
    failure = _failure(list(_causes(error)))
    failure.reason = failure.reason.encode(errors="replace").decode()
    return failure.reply


def _failure(causes: Sequence[BaseException]) -> Failure:
    for cause in causes:
        if isinstance(cause, Refused):
            return cause
        # torch raises NotImplementedError too, for a dtype that an operator does not support
        if isinstance(cause, NotImplementedError) and "not implemented for '" not in str(cause):
            return Failure("UNSUPPORTED", _line(str(cause) or "not implemented"))
        if IN_A_GRAPH in _text(cause):  # torch.compile's exception quotes this text
            return Failure("UNSUPPORTED", IN_A_GRAPH)
        if isinstance(cause, CompilationError):
            return Failure("COMPILE_ERROR", _compile_reason(_describe_front_end(causes)))
        if isinstance(cause, OutOfResources | PTXASError):
            return Failure("COMPILE_ERROR", _compile_reason(describe(cause)))
        if isinstance(cause, OSError) and cause.errno in NO_ROOM and _in_the_compiler(cause):
            where = f"{cause.strerror}: {cause.filename or 'make room there'}"
            reason = _line(f"a compiled kernel cannot be written to disk: {where}")
            return Failure("RUNTIME_ERROR", reason, Kind.DISK)
        if _in_the_compiler(cause):
            return Failure("COMPILE_ERROR", _compile_reason(describe(cause)))
        if (kind := kind_of(cause)) is Kind.OUT_OF_MEMORY:
            return Failure("RUNTIME_ERROR", out_of_memory(cause), kind)
    return Failure("RUNTIME_ERROR", describe(causes[-1]), kind_of(causes[-1]))


def _compile_reason(reason: str) -> str:
    target = f" for {backend.TARGET}" if backend.TARGET else ""
    return f"a kernel does not compile{target}: {reason}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def describe(error: BaseException) -> str:
    """Return the exception as one line: `ValueError: bad width, line 12 of rope.py: check(d)`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _in_solution(frame)]
    where = f", {source.of_entry(frames[-1])}" if frames else ""
    return _line(f"{type(error).__name__}: {_text(error)}") + where


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be read)"


def _describe_front_end(causes: Sequence[BaseException]) -> str:
    """Describe the error of Triton's front end, with its line in the innermost kernel.

    The exception's text holds the kernel's source up to the error, but no line number of the file.
    """
    index = max(n for n, cause in enumerate(causes) if isinstance(cause, CompilationError))
    error = causes[index]
    assert isinstance(error, CompilationError)
    text = error.error_message or next(map(describe, causes[index + 1 :]), type(error).__name__)
    where = source.of_node(error.src, error.node, Path(sys.path[0]))
    return ", ".join(filter(None, (_line(text), where)))


def _in_the_compiler(error: BaseException) -> bool:
    """Return whether Triton's compiler raised the error; its passes raise a bare RuntimeError."""
    frames = traceback.extract_tb(error.__traceback__)
    return any((frame.filename, frame.name) == (compiler.__file__, "compile") for frame in frames)


def _in_solution(frame: traceback.FrameSummary) -> bool:
    """Return whether the frame is in the solution's folder, the first on `sys.path`."""
    return frame.filename.startswith(sys.path[0])


def _line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_REASON]
