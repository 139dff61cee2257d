"""The verdict and the reason of an exception in a solution's process."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Iterator, Sequence

from torch._C import _dispatch_has_computed_kernel_for_dispatch_key as has_kernel
from torch._ops import OpOverload, OpOverloadPacket
from triton.compiler import compiler
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITCallable, get_jit_fn_file_line

from common import source
from common.errors import IN_A_GRAPH, NO_ROOM, Kind, kind_of, out_of_memory
from common.sandbox import backend
from common.source import Place, Reason
from common.verdicts import Failure
from common.wire import Reply

Node = ast.expr | ast.stmt
LONGEST_REASON = 400
"""The maximum number of characters that a reason quotes of an exception's text."""


def judge(error: BaseException) -> Reply:
    """Return the verdict of an exception, with a reason of one line."""
    causes = [error]
    while cause := causes[-1].__cause__:
        causes.append(cause)
    failure = _failure(causes)
    failure.reason = failure.reason.encode(errors="replace").decode()
    return failure.reply


def _failure(causes: Sequence[BaseException]) -> Failure:
    for cause in causes:
        if isinstance(cause, Failure):
            return cause
        # torch raises NotImplementedError too, for a dtype that an operator does not support
        if isinstance(cause, NotImplementedError) and "not implemented for '" not in str(cause):
            if operator := None if backend.ON_GPU else _operator_of_a_gpu(cause):
                reason = f"the operator {operator} is registered for CUDA alone, and no GPU is here"
                return Failure("UNSUPPORTED", reason, Kind.NO_GPU)
            return Failure("UNSUPPORTED", _line(str(cause) or "not implemented"), kind_of(cause))
        if IN_A_GRAPH in _text(cause):  # torch.compile's exception quotes this text
            return Failure("UNSUPPORTED", IN_A_GRAPH, Kind.NO_GPU)
        if isinstance(cause, CompilationError):
            return _does_not_compile(_reason(_front_end_words(causes), _place(causes)))
        if isinstance(cause, OutOfResources | PTXASError):
            return _does_not_compile(describe(cause))
        if isinstance(cause, OSError) and cause.errno in NO_ROOM and _in_the_compiler(cause):
            where = f"{cause.strerror}: {cause.filename or 'make room there'}"
            reason = _line(f"a compiled kernel cannot be written to disk: {where}")
            return Failure("RUNTIME_ERROR", reason, Kind.DISK)
        if _in_the_compiler(cause):
            return _does_not_compile(describe(cause))
        if (kind := kind_of(cause)) is Kind.OUT_OF_MEMORY:
            return Failure("RUNTIME_ERROR", out_of_memory(cause), kind)
    text, places = describe(causes[-1])
    return Failure("RUNTIME_ERROR", text, kind_of(causes[-1]), places)


def _operator_of_a_gpu(error: BaseException) -> str:
    """Return the operator that raised the error if only CUDA has a kernel for it; "" otherwise."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        operator = frame.f_locals.get("self")
        if isinstance(operator, OpOverloadPacket):
            operator = getattr(operator, operator.overloads()[0])
        if isinstance(operator, OpOverload):
            name = operator.name()
            if has_kernel(name, "CUDA") and not has_kernel(name, "CPU"):
                return str(name)
    return ""


def _does_not_compile(reason: Reason) -> Failure:
    target = f" for {backend.TARGET}" if backend.TARGET else ""
    words = f"a kernel does not compile{target}: {reason.text}"
    return Failure("COMPILE_ERROR", words, places=reason.places)


def describe(error: BaseException) -> Reason:
    """Return the exception in one line: `ValueError: bad width, line 12 of rope.py: check(d)`."""
    place = _place([error])
    asks = not backend.ON_GPU and place and "cuda" in place.code.lower()
    return _reason(_words(error) + ", no GPU is here" * bool(asks), place)


def _reason(words: str, place: Place | None) -> Reason:
    return Reason(f"{words}, {place}", (place,)) if place else Reason(words)


def _words(error: BaseException) -> str:
    """Return the exception's type and text; for an assertion without a text, its source."""
    text, last = _text(error), traceback.extract_tb(error.__traceback__)[-1:]
    if not text and isinstance(error, AssertionError) and not any(map(_in_solution, last)):
        text = "".join(entry.line or "" for entry in last)
    printed = " (--verbose shows why)" * (type(error) is RuntimeError and _in_the_compiler(error))
    return _line(": ".join(filter(None, (type(error).__name__, text)))) + printed


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be read)"


def _front_end_words(causes: Sequence[BaseException]) -> str:
    """Return the text of Triton's error in the innermost kernel, without the kernel's source."""
    index = max(n for n, cause in enumerate(causes) if isinstance(cause, CompilationError))
    error, rest = causes[index], causes[index + 1 :]
    assert isinstance(error, CompilationError)
    return _line(error.error_message or "") or next(map(_words, rest), type(error).__name__)


def _place(causes: Sequence[BaseException]) -> Place | None:
    """Return the innermost line of the folder that Triton read or, if it read none, that ran."""
    if read := [node for node in _read_nodes(causes) if node[0].startswith(sys.path[0])]:
        return source.of_node(*read[-1])
    entries = [entry for cause in causes for entry in traceback.extract_tb(cause.__traceback__)]
    ran = [entry for entry in entries if _in_solution(entry)]
    return source.of_entry(ran[-1]) if ran else None


def _read_nodes(causes: Sequence[BaseException]) -> Iterator[tuple[str, int, Node]]:
    """Yield the syntax nodes that Triton was reading, each with the file and line of its function.

    Triton's exceptions name no file, and that of a `noinline` call holds the source of another
    function than its node. The frames of Triton's visitors have both.
    """
    for cause in causes:
        function = None
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            owner, node = frame.f_locals.get("self"), frame.f_locals.get("node")
            function = owner if isinstance(owner, JITCallable) else function
            if isinstance(owner, ast.NodeVisitor) and isinstance(node, Node):
                function = getattr(owner, "jit_fn", function)
                if function:
                    yield *get_jit_fn_file_line(function), node


def _in_the_compiler(error: BaseException) -> bool:
    """Return whether Triton's compiler raised; its passes print why, and raise a RuntimeError."""
    frames = traceback.extract_tb(error.__traceback__)
    return any((frame.filename, frame.name) == (compiler.__file__, "compile") for frame in frames)


def _in_solution(frame: traceback.FrameSummary) -> bool:
    """Return whether the frame is in the solution's folder, the first on `sys.path`."""
    return frame.filename.startswith(sys.path[0])


def _line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_REASON]
