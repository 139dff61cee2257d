"""The exceptions for mistakes of the user, and the kinds of failures and of notes."""

import difflib
import enum
import errno
import re
from collections.abc import Iterable
from typing import NamedTuple


class UserError(Exception):
    """A mistake that the user can correct, such as an unknown op.

    Its text is one line that states the mistake and its correction. The command line prints it and
    exits with code 2.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return, for example, `; did you mean rope?` if a known word is similar, otherwise ""."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


class ServerEnded(Exception):
    """The fork server and its workers have ended; any solution may be the cause."""


class Kind(enum.StrEnum):
    """The kind of a failure, which code branches on; reasons are only for people."""

    NONE = ""
    """A failure of the solution, or no failure."""
    OUT_OF_MEMORY = "out of memory"
    """The GPU's memory ran out; other processes may have used it."""
    BUSY = "busy"
    """CUDA gave no context: others' contexts fill the memory, or may not be shared."""
    DISK = "disk"
    """A compiled kernel could not be written to the disk."""
    LAUNCH = "launch"
    """A launch is beyond what the driver of a GPU accepts."""
    KILLED = "killed"
    """A SIGKILL that the harness did not send ended the process while other processes ran."""
    LATE = "late"
    """The process gave no answer in time while other solutions ran."""
    ILLEGAL_ACCESS = "illegal access"
    """CUDA reported an access far out of bounds, after which the process is unusable."""
    NO_GPU = "no GPU"
    """A part of the solution runs only on a GPU, and there is none."""
    WRAPPED = "wrapped"
    """An address is out of bounds because a product or a sum of its offset wrapped."""
    INFERENCE_THREAD = "inference thread"
    """Another thread, which was not in inference mode, wrote to a tensor of inference mode."""

    @classmethod
    def _missing_(cls, value: object) -> "Kind":
        """Return NONE for an unknown kind, which a solution's process may have invented."""
        return cls.NONE


NOTES = {
    "NO_KERNEL": "no Triton kernel was launched, torch answered",
    "CAUGHT": "an exception of a launch was caught by the solution",
    "NOT_COMPILED": "not compiled for a GPU",
    "WRAPPED": "an offset wraps in a tensor of more than 2^31 elements",
    "UNSUPPORTED_MODE": "a mode of autograd, or a stream, is not supported: --verbose says which",
    "OTHER_GRADIENTS": "a second backward of a retained graph gives other gradients",
    "OTHER_SECOND_DERIVATIVES": "a double backward gives wrong second derivatives and no error",
    "STALE_GRAPH": "its CUDA graph does not follow its inputs",
}
"""The words of each kind of note."""
DRAWN = ("OTHER_GRADIENTS", "OTHER_SECOND_DERIVATIVES")
"""The kinds that are looked for in drawn cases alone, and noted there if they are not found too."""


class Note(NamedTuple):
    """A note on one direction of one case."""

    kind: str
    """A key of NOTES, which code branches on."""
    detail: str = ""
    found: bool = True
    """False if it was looked for in vain; see DRAWN."""

    def __str__(self) -> str:
        """Return the note in words."""
        return ": ".join(filter(None, (NOTES[self.kind], self.detail)))


_WORDS = {
    "out of memory": Kind.OUT_OF_MEMORY,  # torch, Triton and CUDA
    "CUBLAS_STATUS_ALLOC_FAILED": Kind.OUT_OF_MEMORY,  # of cuBLAS's workspace
    "CUBLAS_STATUS_NOT_INITIALIZED": Kind.OUT_OF_MEMORY,
    "CUBLAS_STATUS_INTERNAL_ERROR": Kind.OUT_OF_MEMORY,  # seen of products beside full memory
    "busy or unavailable": Kind.BUSY,
    "illegal memory access": Kind.ILLEGAL_ACCESS,
    "Inplace update to inference tensor outside InferenceMode": Kind.INFERENCE_THREAD,
}
"""The words in a RuntimeError of another library, by which its kind is recognized."""
_ALLOCATION = re.compile(r"Tried to allocate (\S+ \S+)\. GPU \d+ has a total capacity of (\S+ \S+)"
                    r" of which (\S+ \S+) is free")  # fmt: skip
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
"""The errors of a disk that cannot be written."""

IN_A_GRAPH = "the interpreter cannot run a kernel inside a graph of torch.compile"
"""The reason for a solution with `fullgraph=True`: without a GPU each launch breaks its graph."""


def kind_of(error: BaseException) -> Kind:
    """Return the kind of an exception: its attribute `kind`, or the kind that its text implies."""
    if isinstance(kind := getattr(error, "kind", None), Kind):
        return kind
    text = str(error) if isinstance(error, RuntimeError) else ""
    return next((kind for words, kind in _WORDS.items() if words in text), Kind.NONE)


def out_of_memory(error: BaseException) -> str:
    """Return an out-of-memory exception's message as one short line.

    For example `out of memory: asked for 3.10 GiB, 14.20 GiB of 15.99 GiB free`.
    """
    if isinstance(getattr(error, "kind", None), Kind):  # of a process, which has shortened it
        return str(error)
    words = "out of memory"
    if not (match := _ALLOCATION.search(str(error))):
        return words
    requested, total, free = match.groups()
    return f"{words}: asked for {requested}, {free} of {total} free"
