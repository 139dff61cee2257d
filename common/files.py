"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: Path, content: bytes | bytearray) -> None:
    """Write a file; a full disk or a kill leaves what was there.

    Raises:
        OSError: The disk takes no more; the error names the file.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # two processes may write one file
    try:
        fresh.write_bytes(content)
        os.replace(fresh, path)
    except OSError as error:  # which does not name the file
        fresh.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
