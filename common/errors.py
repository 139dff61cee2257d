"""The exceptions for mistakes of the user, and what is behind a failure where others may be."""

import difflib
import enum
import errno
import re
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can correct, such as an unknown op.

    Its text is one line that says what is wrong and what to do. The command line prints it and
    exits with code 2.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean rope?` where one of the known words is close, otherwise nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


class ServerEnded(Exception):
    """The fork server has ended and its workers with it; any solution may have ended it."""


class Kind(enum.StrEnum):
    """The kind of a failure, by which code decides; reasons are for people alone."""

    NONE = ""
    """Nothing that anyone needs to know."""
    OUT_OF_MEMORY = "out of memory"
    """The GPU's memory ran out, which others take too."""
    DISK = "disk"
    """The disk takes no compiled kernel."""
    KILLED = "killed"
    """A SIGKILL that the harness has not sent ended the process, beside which others ran."""
    ILLEGAL_ACCESS = "illegal access"
    """CUDA found an access far out of bounds, which ends the process."""
    INFERENCE_THREAD = "inference thread"
    """Another thread wrote to a tensor of inference mode, which each thread enters for itself."""

    @classmethod
    def _missing_(cls, value: object) -> "Kind":
        """Take what a solution's process made up for nothing."""
        return cls.NONE


_WORDS = {
    "out of memory": Kind.OUT_OF_MEMORY,  # torch, Triton and CUDA
    "CUBLAS_STATUS_ALLOC_FAILED": Kind.OUT_OF_MEMORY,  # of cuBLAS's workspace
    "CUBLAS_STATUS_NOT_INITIALIZED": Kind.OUT_OF_MEMORY,
    "illegal memory access": Kind.ILLEGAL_ACCESS,
    "Inplace update to inference tensor outside InferenceMode": Kind.INFERENCE_THREAD,
}
"""The words of other libraries that tell the kind of a RuntimeError."""
_ASKED = re.compile(r"Tried to allocate (\S+ \S+)\. GPU \d+ has a total capacity of (\S+ \S+)"
                    r" of which (\S+ \S+) is free")  # fmt: skip
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
"""The errors of a disk that takes no more."""

IN_A_GRAPH = "the interpreter cannot run a kernel inside a graph of torch.compile"
"""The reason of a solution that asks for a whole graph: without a GPU one breaks at each launch."""


def kind_of(error: BaseException) -> Kind:
    """Return the kind of an exception: the one that it has, or that of another library's words."""
    if isinstance(known := getattr(error, "kind", None), Kind):
        return known
    text = str(error) if isinstance(error, RuntimeError) else ""
    return next((kind for words, kind in _WORDS.items() if words in text), Kind.NONE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that a GPU's memory ran out."""
    return kind_of(error) is Kind.OUT_OF_MEMORY


def out_of_memory(error: BaseException) -> str:
    """Return what such an exception says as one short line.

    For example `out of memory: asked for 3.10 GiB, 14.20 GiB of 15.99 GiB free`.
    """
    text, words = str(error), "out of memory"
    if f"{words}: " in text:  # it is one already
        return text[text.index(words) :]
    if not (match := _ASKED.search(text)):
        return words
    asked, total, free = match.groups()
    return f"{words}: asked for {asked}, {free} of {total} free"
