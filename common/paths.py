"""The folders of this repository, which every other module takes from here; atomic writes."""

from __future__ import annotations

import os
from pathlib import Path

COMMON = Path(__file__).resolve().parent
ROOT = COMMON.parent
CONTRIBUTORS = ROOT / "contributors"
OPS = COMMON / "ops"
PEERS = COMMON / "peers"
RESULTS = ROOT / "results"
PLOTS = ROOT / "docs" / "plots"
SITE = ROOT / "site"
CACHE = ROOT / ".cache"


def replace(path: Path, content: bytes | bytearray) -> None:
    """Write a file; a full disk or a kill leaves the previous content.

    Raises:
        OSError: The file cannot be written; the error names it.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # for concurrent writers of a file
    try:
        fresh.write_bytes(content)
        os.replace(fresh, path)
    except OSError as error:  # without the file's name
        fresh.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
