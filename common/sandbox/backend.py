"""The device of a solution's process.

With a GPU, kernels run on it. Without a GPU, kernels are interpreted, or only compiled for a target
GPU, or both when work is counted. The process sets this once, right after its fork.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator

import torch
from triton import knobs
from triton.compiler import compiler
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from common.processes import VISIBLE
from common.sandbox import configurations, target
from common.sandbox.interpreter import patches
from common.sandbox.launches import LOG
from common.wire import STAND_IN, ForkRequest

ON_GPU = True
INTERPRETED = COUNTED = False
TARGET = ""
"""The GPU that kernels are compiled for."""
FIXED_SETTINGS = (
    "runtime.interpret", "runtime.override_arch", "runtime.jit_cache_hook",
    "runtime.add_stages_inspection_hook", "compilation.override", "compilation.front_end_debugging",
    "compilation.store_binary_only", "cache.dir", "cache.manager_class",
)  # fmt: skip
"""The settings in triton.knobs by which a kernel would not be compiled for the target. Settings of
the generated code, such as the precision of products, are left to the solution."""
LAG = 10_000_000
"""The GPU clock cycles for which the default stream sleeps: a few milliseconds."""


def install(wanted: ForkRequest) -> None:
    """Set up the device, once, before any kernel runs; without a GPU, patch torch and Triton."""
    global ON_GPU, INTERPRETED, COUNTED, TARGET
    ON_GPU, COUNTED, TARGET = wanted.device == "cuda", wanted.counted, wanted.target
    INTERPRETED = not ON_GPU and (COUNTED or not TARGET)
    os.environ["TRITON_INTERPRET"] = str(int(INTERPRETED))
    if TARGET:
        os.environ["TRITON_CACHE_DIR"] = wanted.cache
    compiler.filter_traceback = lambda error: None  # `failures` reads the front end's frames
    if not ON_GPU:
        os.environ[VISIBLE] = ""
        target.install(TARGET or STAND_IN)
    if INTERPRETED:
        patches.install()
    elif TARGET and not wanted.full:
        target.stop_at_llvm()
        target.lift_addresses()
        configurations.install()
        for launcher in (JITFunction, Autotuner):
            launcher.run = LOG.watched(launcher.run)
    keep_settings(FIXED_SETTINGS if TARGET else FIXED_SETTINGS[:1])


def keep_settings(names: Iterable[str] = FIXED_SETTINGS[:1]) -> None:
    """Keep settings of Triton as they are now, by default whether kernels are interpreted.

    Whatever a solution assigns to them or to their environment variables has no effect.
    """
    if not knobs.runtime.interpret:  # a kernel may name the class instead of the setting
        interpreter.InterpretedFunction = JITFunction
    for group, name in (setting.split(".") for setting in names):
        owner = getattr(knobs, group)
        kept = functools.partial(lambda value, _: value, getattr(owner, name))
        setattr(type(owner), name, property(kept, lambda *_: None, lambda _: None))


@contextlib.contextmanager
def another_stream() -> Iterator[None]:
    """Run the block on a side stream while the default stream sleeps.

    Work that a solution launches on the default stream by mistake is then late.
    """
    with torch.cuda.stream(torch.cuda.default_stream()):
        torch.cuda._sleep(LAG)
    with torch.cuda.stream(_side_stream()):
        yield


@functools.cache
def _side_stream() -> torch.cuda.Stream:
    """Return the same stream for all calls, since torch caches free memory per stream."""
    return torch.cuda.Stream()


def synchronize() -> None:
    """Wait until the GPU, if there is one, has finished all queued work.

    Raises:
        RuntimeError: An earlier kernel has left the CUDA context unusable.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
