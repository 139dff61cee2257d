"""The confinement of a solution's process by Landlock, on Linux kernels that have it."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common.paths import ROOT

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_SIGNALS = 1 << 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITES = _WRITE_FILE | sum(1 << bit for bit in range(4, 14)) | _TRUNCATE
"""The rights to write, remove, create, move and truncate files."""
CACHES = (
    "TRITON_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
    "CUDA_CACHE_PATH", "XDG_CACHE_HOME",
)  # fmt: skip
"""The environment variables that name the cache folders of compilers."""


def landlock_version(libc: ctypes.CDLL) -> int:
    """Return the kernel's Landlock version; below 1 if the kernel has no Landlock."""
    return int(libc.syscall(_CREATE_RULESET, None, 0, 1))


def confine(libc: ctypes.CDLL) -> None:
    """Restrict this process as far as the kernel's Landlock can.

    From Linux 6.2, the process cannot write in the repository. From Linux 6.12, it can signal only
    processes that it started, and cannot read another process's memory or files through /proc.
    """
    version = landlock_version(libc)
    writes, signals = _WRITES * (version >= 3), _SIGNALS * (version >= 6)
    attributes = (ctypes.c_uint64 * 3)(writes, 0, signals)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, 24 if signals else 8, 0)
    if ruleset < 0:
        return
    for path in writable_paths():
        with contextlib.suppress(OSError):
            _allow(libc, ruleset, path, writes)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, which landlock_restrict_self requires
    libc.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def writable_paths() -> Iterator[Path]:
    """Yield the files and folders that a solution may write to, subfolders included.

    Landlock cannot forbid a folder, only allow other folders. These are the siblings of the
    repository and of each of its parent folders, the folder of temporary files, and the compilers'
    caches. For a repository at `/home/ada/study` the siblings are the other entries of `/home/ada`,
    of `/home` and of `/`.
    """
    yield Path(tempfile.gettempdir())
    home = Path(os.path.expanduser("~")).resolve()
    caches = [Path(os.environ[name]) for name in CACHES if os.environ.get(name)]
    if home in ROOT.parents or home.is_relative_to(ROOT):
        caches += [home / name for name in (".cache", ".nv", ".triton")]
    # a cache folder created after this, in a parent folder of the repository, would not be allowed
    for cache in caches:
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            yield cache
    for inner, outer in itertools.pairwise((ROOT, *ROOT.parents)):
        with contextlib.suppress(OSError):
            yield from (path for path in outer.iterdir() if path != inner)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, writes: int) -> None:
    """Allow writes to a file, or to a folder and its subfolders, but not through a link."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        if not os.path.isdir(fd):
            writes &= _WRITE_FILE | _TRUNCATE
        rule = struct.pack("=Qi", writes, fd)
        libc.syscall(_ADD_RULE, ruleset, 1, rule, 0)
    finally:
        os.close(fd)
