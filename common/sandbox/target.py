"""A target GPU that is not present: its properties, and a Triton driver that compiles for it.

Without a GPU, torch.cuda and Triton's driver answer questions about the GPU, such as its number of
multiprocessors, with the target's properties, whether kernels are compiled or interpreted.

Triton compiles each launch for the named target, with the launch's own signature, constants,
alignment and options, and checks the kernel against the target's limits of shared memory and
threads. The launch itself only checks its grid: a kernel's results keep their uninitialized
content.

A verdict needs only some stages of the compiler. LLVM's optimizer, its code generator and ptxas
take more than half of a compilation. They accept whatever Triton's own passes accept, except for
code that only they read (see UNREAD) and options of ptxas. The shared memory and the warps of a
kernel are known before these stages.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton import knobs
from triton._C.libtriton import llvm
from triton.backends.compiler import GPUTarget
from triton.runtime import cache
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import DriverConfig

from common import paths
from common.errors import Kind

THREADS = 1024
"""The maximum threads of a block, on every target."""
REGISTERS, SHARED = 32, 1 << 10
"""The registers of a thread and the bytes of shared memory of a kernel that ptxas has not seen."""
GRID = (2**31 - 1, 65_535, 65_535)
"""The maximum programs of a launch on each axis, on every target of CUDA."""
Grid = tuple[int, int, int]


class LaunchRefused(RuntimeError):
    """A launch that a GPU's driver refuses."""

    kind = Kind.LAUNCH


def checked(sizes: Sequence[Any]) -> Grid:
    """Return the sizes of a grid on three axes, as integers.

    Triton computes the number of programs in 32 bits, and launches none if it is not positive.

    Raises:
        LaunchRefused: CUDA refuses the grid, or Triton launches none of its programs.
        TypeError: A size is no integer.
    """
    grid: Grid = (*map(operator.index, sizes), *[1] * (3 - len(sizes)))  # type: ignore[assignment]
    programs = math.prod(grid)
    if min(grid) <= 0 and programs <= 0:
        return grid
    for axis, size, most in zip("xyz", grid, GRID, strict=True):
        if not 0 < size <= most:
            reason = f"axis {axis} of the grid {grid} takes 1 to {most:,} programs"
            raise LaunchRefused(f"Triton Error [CUDA]: invalid argument: {reason}")
    if not 0 < programs % 2**32 < 2**31:
        raise LaunchRefused(f"Triton counts the programs of the grid {grid} in 32 bits: none runs")
    return grid


@dataclass(frozen=True)
class Target:
    """A GPU that kernels are compiled for."""

    name: str
    backend: str
    arch: int | str
    warp: int
    shared: int
    """The maximum bytes of shared memory of a block."""
    processors: int
    """Streaming multiprocessors, or compute units."""
    memory: int
    """The bytes of GPU memory, nominally."""
    l2: int
    threads: int = 2048
    """The maximum threads of a multiprocessor."""
    registers: int = 65536
    """The 32-bit registers of a multiprocessor."""

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability; of gfx942, (9, 4)."""
        return divmod(self.arch, 10) if isinstance(self.arch, int) else (9, 4)

    @property
    def properties(self) -> SimpleNamespace:
        """The properties in the form of `torch.cuda.get_device_properties`."""
        major, minor = self.capability
        return SimpleNamespace(
            name=self.name, major=major, minor=minor, gcnArchName=str(self.arch),
            total_memory=self.memory, L2_cache_size=self.l2, warp_size=self.warp,
            multi_processor_count=self.processors, regs_per_multiprocessor=self.registers,
            max_threads_per_block=THREADS, max_threads_per_multi_processor=self.threads,
            shared_memory_per_block=48 << 10, shared_memory_per_block_optin=self.shared,
            shared_memory_per_multiprocessor=self.shared + (1 << 10),
        )  # fmt: skip


TARGETS = {
    "sm_80": Target("NVIDIA A100-SXM4-80GB", "cuda", 80, 32, 163 << 10, 108, 80 << 30, 40 << 20),
    "sm_90": Target("NVIDIA H100 80GB HBM3", "cuda", 90, 32, 227 << 10, 132, 80 << 30, 50 << 20),
    "sm_100": Target("NVIDIA B200", "cuda", 100, 32, 227 << 10, 148, 180 << 30, 126 << 20),
    "sm_120": Target(
        "NVIDIA GeForce RTX 5090", "cuda", 120, 32, 99 << 10, 170, 32 << 30, 96 << 20, 1536
    ),
    "gfx942": Target(
        "AMD Instinct MI300X", "hip", "gfx942", 64, 64 << 10, 304, 192 << 30, 4 << 20, 2048, 131072
    ),
}
"""The targets by name; sm_90 is also an H200. The shared memory is that of CUDA's programming
guide, table "Technical Specifications per Compute Capability", and of AMD's CDNA3 ISA."""


def _driver(target: Target) -> SimpleNamespace:
    """Return Triton's driver for a target, as far as launches and solutions ask it."""
    properties = {
        "max_shared_mem": target.shared, "multiprocessor_count": target.processors,
        "max_num_regs": target.registers, "warpSize": target.warp,
    }  # fmt: skip
    check = checked if target.backend == "cuda" else tuple

    def launcher(source: Any, metadata: Any) -> Callable[..., Any]:
        """Return a launcher that runs nothing; for CUDA, it checks the grid."""
        return lambda x, y, z, *arguments, **options: check((x, y, z)) and None

    return SimpleNamespace(
        utils=SimpleNamespace(
            get_device_properties=lambda device: properties,
            load_binary=lambda name, kernel, shared, device: (None, None, REGISTERS, 0, THREADS),
        ),
        get_current_target=lambda: GPUTarget(target.backend, target.arch, target.warp),
        get_active_torch_device=lambda: torch.device("cpu"),  # where the tensors are stored
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_device_capability=lambda device=0: target.capability,
        map_python_to_cpp_type=lambda ty: ty,  # no launcher is compiled
        get_benchmarker=lambda: _bench,
        launcher_cls=launcher,
    )


def install(name: str) -> None:
    """Let the target of this name stand for the GPU; call this before any launch.

    A driver that a solution installs, such as one with a GPU's properties of its own, has no
    effect. An autotuner compiles all its configurations, as on a GPU, and selects the first that
    fits.
    """
    target = TARGETS[name]
    driver = _driver(target)
    DriverConfig.default = DriverConfig.active = property(lambda _: driver, _ignore)
    DriverConfig.set_active = DriverConfig.reset_active = _ignore
    Autotuner.do_bench = property(lambda _: _bench)
    vars(torch.cuda).update(_answers(target))


def _answers(target: Target) -> dict[str, Callable[..., Any]]:
    """Return the functions of torch.cuda that raise without a GPU and that launchers call.

    Solutions choose the device `cuda` if a GPU is available, so none is, even if a solution makes
    the machine's GPU visible. torch.compile needs a function of its own for each name.
    """
    return {
        "is_available": lambda: False,
        "device_count": lambda: 0,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: target.properties,
        "get_device_capability": lambda device=None: target.capability,
        "get_device_name": lambda device=None: target.name,
        "is_bf16_supported": lambda including_emulation=True: True,
        "mem_get_info": lambda device=None: (target.memory, target.memory),
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "is_current_stream_capturing": lambda: False,
        "Stream": Stream,
        "Event": Event,
        "device": contextlib.nullcontext,
        "device_of": lambda tensor: contextlib.nullcontext(),
        "stream": lambda stream: contextlib.nullcontext(stream),
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
    }


class Event(torch.cpu.Event):
    """An event of a process without a GPU, which has happened."""

    def __init__(self, *options: Any, **named: Any) -> None:
        """Take torch.cuda.Event's arguments."""


class Stream(torch.cpu.Stream):
    """The stream of a process without a GPU, whose work is done when its call returns."""

    cuda_stream = 0

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        """Take torch.cuda.Stream's arguments."""

    def record_event(self, event: Any = None) -> Any:
        """Return the event, or a new one."""
        return event or Event()

    def synchronize(self) -> None:
        """Do nothing."""


def _ignore(*arguments: Any, **options: Any) -> None:
    """Do nothing."""


def warm(full: bool) -> None:
    """Do the work of a first compilation once, before any process is forked.

    Triton imports Gluon and, for the cache key of fully compiled kernels, hashes its own 300 MB.
    The cache key of a verdict, for which kernels are not compiled in `full`, needs no hash; see
    `stop_at_llvm`.
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
OWN = r"griddepcontrol\.(?:wait|launch_dependents); // dummy"
"""The assembly of Triton's own `gdc_wait` and `gdc_launch_dependents`."""
UNREAD = re.compile(
    rf'tt\.elementwise_inline_asm "(?!{OWN})|tt\.extern_elementwise|tma_gather|tma_scatter'
    rf"|{HINT}.*{HINT}|tt\.func public (?:[^\n,]*,){{100}}"
)
"""Code that Triton's passes do not check: a kernel's inline assembly, the name of a library
function, gathers and scatters of a descriptor's rows, which ptxas supports from sm_100 on, two
cache hints on one access, many pairs of which ptxas rejects, and a hundred arguments, whose bytes
ptxas limits."""
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
    knobs.cache.manager_class = Files
    knobs.runtime.add_stages_inspection_hook = _hook
    knobs.compilation.store_binary_only = True


class Files(cache.FileCacheManager):  # type: ignore[misc]
    """Triton's files of a kernel, written without a folder for each, which takes as long again."""

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file; no reader sees a part of it."""
        path: str = self._make_path(filename)
        paths.replace(Path(path), data if isinstance(data, bytes) else str(data).encode())
        return path


HIGH = 1 << 46
"""A bit of every address of a GPU's memory, and of a position-independent program's heap."""


def lift_addresses() -> None:
    """Let `data_ptr` return an address such as a GPU's, which Triton passes as int64.

    The heap of a Python that is not position-independent, such as Ubuntu's, lies below 4 GiB; an
    address there would be an int32, which no kernel can make a pointer of. No kernel runs here.
    """
    address = torch.Tensor.data_ptr

    def lifted(tensor: torch.Tensor) -> int:
        return address(tensor) and address(tensor) | HIGH

    torch.Tensor.data_ptr = lifted  # type: ignore[assignment,method-assign]


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
