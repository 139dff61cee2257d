"""The folders of this repository; every other module takes them from here."""

import os
import tempfile
from pathlib import Path

COMMON = Path(__file__).resolve().parent
ROOT = COMMON.parent
CONTRIBUTORS = ROOT / "contributors"
OPS = COMMON / "ops"
PEERS = COMMON / "peers"
RESULTS = ROOT / "results"
PLOTS = ROOT / "docs" / "plots"
SITE = ROOT / "site"
PROFILES = ROOT / "profiles"
CACHE = ROOT / ".cache"

CACHES = (
    "TRITON_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
    "CUDA_CACHE_PATH", "XDG_CACHE_HOME",
)  # fmt: skip
"""The environment variables that name the cache folders of compilers."""
CACHES_AT_HOME = (".cache", ".nv", ".triton")


def scratch(at_home: bool = True) -> list[Path]:
    """Return the folders that solutions may write: temporary files and compilers' caches.

    Args:
        at_home: Include the caches in the user's home.
    """
    caches = [Path(os.environ[name]) for name in CACHES if os.environ.get(name)]
    if at_home:
        home = Path(os.path.expanduser("~")).resolve()
        caches += [home / name for name in CACHES_AT_HOME]
    return [Path(tempfile.gettempdir()), *caches]
