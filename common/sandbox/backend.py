"""The device behind a solution's process: a GPU, or what stands in its place.

Without one it is Triton's interpreter, or a target that kernels are compiled for and never run on,
or both, where work is counted. The process takes it when it is forked.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator

import torch

from common.processes import VISIBLE
from common.sandbox.compiled import target
from common.sandbox.interpreter import bounds, conflicts, patches
from common.wire import EVERY, Fork

ON_GPU = True
INTERPRETED = COUNTED = False
TARGET = ""
"""The GPU that kernels are compiled for; EVERY where a request names it."""
LAG = 10_000_000
"""The GPU's clock cycles by which its default stream lags behind another: a few milliseconds."""


def warm(wanted: Fork) -> None:
    """Do once, in the fork server, what each such process would do at its first kernel."""
    if wanted.target and not wanted.counted:
        target.warm(whole=wanted.target == EVERY)


def install(wanted: Fork) -> None:
    """Take the device, once, before any kernel runs: patch torch and Triton where it is no GPU."""
    global ON_GPU, INTERPRETED, COUNTED, TARGET
    ON_GPU, COUNTED, TARGET = wanted.device == "cuda", wanted.counted, wanted.target
    INTERPRETED = not ON_GPU and (COUNTED or not TARGET)
    os.environ["TRITON_INTERPRET"] = str(int(INTERPRETED))
    if TARGET:
        os.environ["TRITON_CACHE_DIR"] = wanted.cache
    if not ON_GPU:
        os.environ[VISIBLE] = ""
        _let_launches_choose_a_gpu()
    if INTERPRETED:
        patches.install()
    if TARGET and TARGET != EVERY:  # of every target, each worker is told its own
        target.install(TARGET)
        if not INTERPRETED:
            target.stop_at_llvm()


def _let_launches_choose_a_gpu() -> None:
    """Do nothing in the place of what stands around a launch and raises where no GPU is."""
    vars(torch.cuda).update(
        device=contextlib.nullcontext,
        current_device=lambda: 0,
        synchronize=lambda device=None: None,
    )


def begin_watch(inputs: dict[str, torch.Tensor], backwards: bool) -> bounds.AccessLog | None:
    """Check every address of the call that follows against its arguments; None on a GPU.

    Args:
        inputs: The call's tensor arguments by name.
        backwards: Run the programs of a launch from the last to the first.

    Returns:
        The log of the call's accesses, in which an access out of bounds stays.
    """
    return bounds.WATCH.begin_call(inputs, backwards) if INTERPRETED else None


def find_conflicts() -> conflicts.Conflicts:
    """Look for programs that conflict in the rest of the call that is watched."""
    bounds.WATCH.observer = found = conflicts.Conflicts()
    return found


@contextlib.contextmanager
def another_stream() -> Iterator[None]:
    """Run what is inside on a GPU stream that is not the default one, which lags behind.

    Work that a solution puts on the default stream by mistake is then late.
    """
    with torch.cuda.stream(torch.cuda.default_stream()):
        torch.cuda._sleep(LAG)
    with torch.cuda.stream(_side_stream()):
        yield


@functools.cache
def _side_stream() -> torch.cuda.Stream:
    """Return one stream for all calls: torch keeps free memory for each stream apart."""
    return torch.cuda.Stream()


def limit(nbytes: int) -> None:
    """Refuse torch more than so many bytes of the GPU's memory, as if it had no more."""
    if ON_GPU:
        total = torch.cuda.get_device_properties().total_memory
        torch.cuda.set_per_process_memory_fraction(min(nbytes / total, 1.0))


def synchronize() -> None:
    """Wait until the GPU, if there is one, has done all that was queued.

    Raises:
        RuntimeError: An earlier kernel has left the CUDA context unusable.
    """
    if ON_GPU:
        torch.cuda.synchronize()
