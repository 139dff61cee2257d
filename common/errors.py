"""The exception for mistakes of the user, and the words for what others may have caused."""

import enum
import errno
import re


class UserError(Exception):
    """A mistake that the user can correct, such as an unknown op.

    Its text is one line that says what is wrong and what to do. The command line prints it and
    exits with code 2.
    """


class Kind(enum.StrEnum):
    """What is behind a failure, where something follows from it; reasons are for people alone."""

    NONE = ""
    """Nothing that anyone needs to know."""
    ILLEGAL_ACCESS = "illegal access"
    """CUDA found an access far out of bounds, which ends the process."""
    INFERENCE_THREAD = "inference thread"
    """Another thread wrote to a tensor of inference mode, which each thread enters for itself."""

    @classmethod
    def _missing_(cls, value: object) -> "Kind":
        """Take what a solution's process made up for nothing."""
        return cls.NONE


_WORDS = {
    "illegal memory access": Kind.ILLEGAL_ACCESS,
    "Inplace update to inference tensor outside InferenceMode": Kind.INFERENCE_THREAD,
}
"""The words of other libraries that tell the kind of a RuntimeError."""


def kind_of(error: BaseException) -> Kind:
    """Return the kind of an exception by another library's words."""
    text = str(error) if isinstance(error, RuntimeError) else ""
    return next((kind for words, kind in _WORDS.items() if words in text), Kind.NONE)


OUT_OF_MEMORY = "out of memory"
"""The words in every message of torch, Triton and CUDA about a GPU's memory."""
_CUBLAS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")
"""The words of cuBLAS where there is no memory for its workspace."""
_ASKED = re.compile(r"Tried to allocate (\S+ \S+)\. GPU \d+ has a total capacity of (\S+ \S+)"
                    r" of which (\S+ \S+) is free")  # fmt: skip

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
"""The errors of a disk that takes no more."""
NOT_WRITTEN = "a compiled kernel cannot be written to disk"
"""The words where Triton's cache takes no more: the fault is the disk's, not the kernel's."""

KILLED = "the process ended by SIGKILL"
"""The reason where a process ended so and the harness has not sent the signal."""
ALONE = "also with nothing beside it"
"""The words that follow where the process was alone."""

IN_A_GRAPH = "the interpreter cannot run a kernel inside a graph of torch.compile"
"""The reason of a solution that asks for a whole graph: without a GPU one breaks at each launch."""


def is_out_of_memory(text: str) -> bool:
    """Return whether a message says that a GPU's memory ran out."""
    return any(words in text for words in (OUT_OF_MEMORY, *_CUBLAS))


def out_of_memory(text: str) -> str:
    """Return such a message as one short line.

    For example `out of memory: asked for 3.10 GiB, 14.20 GiB of 15.99 GiB free`.
    """
    if f"{OUT_OF_MEMORY}: " in text:  # it is one already
        return text[text.index(OUT_OF_MEMORY) :]
    if not (found := _ASKED.search(text)):
        return OUT_OF_MEMORY
    asked, total, free = found.groups()
    return f"{OUT_OF_MEMORY}: asked for {asked}, {free} of {total} free"


def was_killed(text: str) -> bool:
    """Return whether a reason says that a SIGKILL ended a process beside which others ran."""
    return KILLED in text and ALONE not in text
