"""A Triton driver for a target GPU that is not present.

Triton compiles each launch for the named target, with the launch's own signature, constants,
alignment and options, and checks the kernel against the target's limits of shared memory and
threads. The launch itself does nothing: a kernel's results keep their uninitialized content.

A verdict needs only some stages of the compiler. LLVM's optimizer, its code generator and ptxas
take more than half of a compilation. They accept whatever Triton's own passes accept, except for
code that only they read (see UNREAD) and options of ptxas. The shared memory and the warps of a
kernel are known before these stages.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton import knobs
from triton._C.libtriton import llvm
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import cache
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver

THREADS = 1024
"""The maximum threads of a block, on every target."""


@dataclass(frozen=True)
class Target:
    """A GPU that kernels are compiled for."""

    backend: str
    arch: int | str
    warp: int
    shared: int
    """The maximum bytes of shared memory of a block."""
    processors: int
    """Streaming multiprocessors, or compute units."""


TARGETS = {
    "sm_80": Target("cuda", 80, 32, 163 << 10, 108),
    "sm_90": Target("cuda", 90, 32, 227 << 10, 132),
    "sm_100": Target("cuda", 100, 32, 227 << 10, 148),
    "sm_120": Target("cuda", 120, 32, 99 << 10, 170),
    "gfx942": Target("hip", "gfx942", 64, 64 << 10, 304),
}
"""The targets by name: A100, H100 and H200, B200, RTX 5090, MI300X. The shared memory is that of
CUDA's programming guide, table "Technical Specifications per Compute Capability", and of AMD's
CDNA3 ISA."""


class NoGPU(DriverBase):  # type: ignore[misc]
    """Triton's driver interface for a target."""

    def __init__(self, target: Target) -> None:
        """Report the target's limits as device properties."""
        self._target = target
        properties = {"max_shared_mem": target.shared, "multiprocessor_count": target.processors}
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: properties,
            load_binary=lambda name, kernel, shared, device: (None, None, 0, 0, THREADS),
        )

    @classmethod
    def is_active(cls) -> bool:
        """Return False, so that Triton does not select this driver by itself."""
        return False

    def get_current_target(self) -> GPUTarget:
        """Return the target in the form that Triton's backends take."""
        return GPUTarget(self._target.backend, self._target.arch, self._target.warp)

    def get_active_torch_device(self) -> torch.device:
        """Return the CPU, where the tensors are stored."""
        return torch.device("cpu")

    def get_current_device(self) -> int:
        """Return the index of the only device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return the default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Return CUDA's compute capability."""
        return divmod(int(self._target.arch), 10)

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Return the type unchanged, since no launcher is compiled."""
        return ty

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return the replacement for Triton's benchmarker."""
        return _bench

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Return a launcher that does nothing."""
        return lambda *arguments, **options: None


def install(name: str) -> None:
    """Make Triton compile for the target of this name; call this once, before any launch.

    An autotuner compiles all its configurations, as on a GPU, and selects the first that fits.
    """
    driver.set_active(NoGPU(TARGETS[name]))
    Autotuner.do_bench = property(lambda _: _bench)


def warm(full: bool) -> None:
    """Do the work of a first compilation once, before any process is forked.

    Triton imports Gluon and, for the cache key of fully compiled kernels, hashes its own 300 MB.
    The cache key of a verdict needs no hash; see `stop_at_llvm`.

    Args:
        full: Whether kernels will be compiled in full.
    """
    import triton.experimental.gluon.language  # noqa: F401

    if full:
        cache.triton_key()


def _bench(call: Callable[[], None], quantiles: Sequence[float]) -> list[float]:
    """Launch a configuration, which raises if it does not fit; return equal times for all."""
    call()
    return [0.0] * len(quantiles)


# --- the stages that a verdict needs --------------------------------------------------------------


HINT = "(?:cacheModifier|evictionPolicy|isVolatile) ="
UNREAD = re.compile(
    rf"tt\.elementwise_inline_asm|tt\.extern_elementwise|tma_gather|tma_scatter|{HINT}.*{HINT}"
)
"""Code that Triton's passes do not check: inline assembly, the name of a library function, gathers
and scatters of a descriptor's rows, which ptxas supports from sm_100 on, and two cache hints on one
access, many pairs of which ptxas rejects."""
KEY = f"verdict {UNREAD.pattern}"
"""Part of the key in Triton's caches, which separates the results of these stages from fully
compiled kernels and from the results for another pattern."""
Stages = dict[str, Callable[[Any, dict[str, Any]], Any]]


def stop_at_llvm() -> None:
    """Compile kernels for NVIDIA's GPUs only as far as a verdict needs; call this once.

    Triton's cache key contains Triton's version, like the cache of verdicts, instead of a digest of
    Triton's libraries: each process would hash 460 MB in half a second.
    """
    cache.triton_key = lambda: f"triton {triton.__version__}"
    knobs.runtime.add_stages_inspection_hook = _hook
    knobs.compilation.store_binary_only = True


def _hook(backend: Any = None, stages: Stages | None = None, options: Any = None, *_: Any) -> Any:
    """Change the stages of one compilation; if called without stages, return their cache key."""
    if stages is None:
        return KEY, KEY
    if options.maxnreg is None and not options.ptx_options:
        _skip_codegen(stages)
    return None


def _skip_codegen(stages: Stages) -> None:
    """Skip LLVM and ptxas unless the kernel contains code that only they read."""
    lower, assemble, link = (stages[name] for name in ("llir", "ptx", "cubin"))
    full = False

    def llir(module: Any, metadata: dict[str, Any]) -> Any:
        nonlocal full
        full = bool(UNREAD.search(str(module)))
        with contextlib.nullcontext() if full else _unoptimized():
            return lower(module, metadata)

    def ptx(module: Any, metadata: dict[str, Any]) -> Any:
        metadata["name"] = "kernel"
        return assemble(module, metadata) if full else ""

    def cubin(module: Any, metadata: dict[str, Any]) -> Any:
        return link(module, metadata) if full else b""

    stages |= {"llir": llir, "ptx": ptx, "cubin": cubin}


@contextlib.contextmanager
def _unoptimized() -> Iterator[None]:
    """Skip LLVM's passes on a kernel, after Triton has built its module."""
    originals = llvm.optimize_module, llvm.link_extern_libs
    llvm.optimize_module = llvm.link_extern_libs = lambda *_: None
    try:
        yield
    finally:
        llvm.optimize_module, llvm.link_extern_libs = originals
