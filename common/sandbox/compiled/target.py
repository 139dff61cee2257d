"""A driver of Triton's that names a GPU and has none.

Triton compiles each launch for the named target, with the launch's own signature, constants,
alignment and options, and holds the kernel against the target's shared memory and threads. The
launch itself does nothing, so that a kernel's results stay what fresh memory holds.
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
"""The most threads of a block, on every target."""


@dataclass(frozen=True)
class Target:
    """A GPU that kernels are compiled for."""

    backend: str
    arch: int | str
    warp: int
    shared: int
    """Bytes of shared memory that one block may take."""
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
    """Triton's interface of a driver, answered for a target."""

    def __init__(self, target: Target) -> None:
        """Name the target's limits as a device's properties."""
        self._target = target
        properties = {"max_shared_mem": target.shared, "multiprocessor_count": target.processors}
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: properties,
            load_binary=lambda name, kernel, shared, device: (None, None, 0, 0, THREADS),
        )

    @classmethod
    def is_active(cls) -> bool:
        """Return False: nothing chooses this driver by itself."""
        return False

    def get_current_target(self) -> GPUTarget:
        """Return the target as Triton's backends name it."""
        return GPUTarget(self._target.backend, self._target.arch, self._target.warp)

    def get_active_torch_device(self) -> torch.device:
        """Return the CPU, where the tensors lie."""
        return torch.device("cpu")

    def get_current_device(self) -> int:
        """Return the number of the only device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return the default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Return CUDA's compute capability."""
        return divmod(int(self._target.arch), 10)

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Return any type: no launcher is compiled."""
        return ty

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return what stands in the place of Triton's own clock."""
        return _launched

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Return a launcher that does nothing."""
        return lambda *arguments, **options: None


def install(name: str) -> None:
    """Have Triton compile for the target of this name; call this once, before any kernel runs.

    An autotuner compiles all its configurations, as on a GPU, and takes the first one that fits.
    """
    driver.set_active(NoGPU(TARGETS[name]))
    Autotuner.do_bench = property(lambda _: _launched)


def warm(whole: bool) -> None:
    """Do once, before any process is forked, what each one's first compilation would repeat.

    Triton imports Gluon and, for the key of whole kernels in its cache, hashes its own 300 MB; a
    verdict's key does without, see `stages.stop_at_llvm`.
    """
    import triton.experimental.gluon.language  # noqa: F401

    if whole:
        cache.triton_key()


def _launched(call: Callable[[], None], quantiles: Sequence[float]) -> list[float]:
    """Launch a configuration and return the same times for each; one that does not fit raises."""
    call()
    return [0.0] * len(quantiles)


# --- the stages of a compilation ------------------------------------------------------------------

# LLVM's optimizer, its code generator and ptxas take more than half of a compilation, and refuse
# nothing that Triton's own passes accept, but for what only they read: see UNREAD, and options of
# ptxas. Shared memory and warps are known before.

HINT = "(?:cacheModifier|evictionPolicy|isVolatile) ="
UNREAD = re.compile(
    rf"tt\.elementwise_inline_asm|tt\.extern_elementwise|tma_gather|tma_scatter|{HINT}.*{HINT}"
)
"""What Triton's passes hand on unread: assembly, the name of a library's function, rows that a
descriptor gathers, which ptxas has from sm_100 on, and two hints on one access, many pairs of which
ptxas refuses."""
KEY = f"verdict {UNREAD.pattern}"
"""What these stages make is kept apart from whole kernels, and from what others of them made, in
Triton's caches."""
Stages = dict[str, Callable[[Any, dict[str, Any]], Any]]


def stop_at_llvm() -> None:
    """Have kernels for NVIDIA's GPUs compiled as far as a verdict needs; call this once.

    Triton's cache goes by Triton's version, as all that is kept of verdicts does: each process
    would read Triton's libraries for their digest, 460 MB in half a second.
    """
    cache.triton_key = lambda: f"triton {triton.__version__}"
    knobs.runtime.add_stages_inspection_hook = _hook
    knobs.compilation.store_binary_only = True


def _hook(backend: Any = None, stages: Stages | None = None, options: Any = None, *_: Any) -> Any:
    """Change the stages of one compilation; return their key in the caches where none are given."""
    if stages is None:
        return KEY, KEY
    if options.maxnreg is None and not options.ptx_options:
        _cut(stages)
    return None


def _cut(stages: Stages) -> None:
    """Leave LLVM and ptxas out, unless the kernel turns out to hold what only they read."""
    lower, assemble, link = (stages[name] for name in ("llir", "ptx", "cubin"))
    whole = False

    def llir(module: Any, metadata: dict[str, Any]) -> Any:
        nonlocal whole
        whole = bool(UNREAD.search(str(module)))
        with contextlib.nullcontext() if whole else _unoptimized():
            return lower(module, metadata)

    def ptx(module: Any, metadata: dict[str, Any]) -> Any:
        metadata["name"] = "kernel"
        return assemble(module, metadata) if whole else ""

    def cubin(module: Any, metadata: dict[str, Any]) -> Any:
        return link(module, metadata) if whole else b""

    stages |= {"llir": llir, "ptx": ptx, "cubin": cubin}


@contextlib.contextmanager
def _unoptimized() -> Iterator[None]:
    """Leave out what LLVM does to a kernel once Triton has made its module."""
    kept = llvm.optimize_module, llvm.link_extern_libs
    llvm.optimize_module = llvm.link_extern_libs = lambda *_: None
    try:
        yield
    finally:
        llvm.optimize_module, llvm.link_extern_libs = kept
