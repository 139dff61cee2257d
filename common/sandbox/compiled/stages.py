"""The stages of Triton's compiler that a verdict needs.

LLVM's optimizer, its code generator and ptxas take more than half of a compilation, and refuse
nothing that Triton's own passes accept, but for what only they read: see UNREAD, and options of
ptxas. Shared memory and warps are known before.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import llvm
from triton.runtime import cache

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
