"""Choose one GPU among several before torch is imported."""

from __future__ import annotations

import ctypes
import os

from common.errors import UserError
from common.processes import VISIBLE


def driver() -> bool:
    """Return whether the CUDA driver, which torch needs to find a GPU, is installed."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def see_only(number: int) -> None:
    """Make one GPU the only visible GPU of this process and its children.

    The number is an index of the visible GPUs: number 1 of CUDA_VISIBLE_DEVICES=2,3 is GPU 3.

    Raises:
        UserError: Fewer GPUs are visible.
    """
    listed = os.environ.get(VISIBLE)
    names = None if listed is None else [name for name in listed.split(",") if name]
    if names is not None and number >= len(names):
        raise missing(number, len(names))
    os.environ[VISIBLE] = str(number) if names is None else names[number]


def visible() -> list[str]:
    """Return the visible GPUs by their names in `CUDA_VISIBLE_DEVICES`.

    The names are numbers, or UUIDs of GPUs or of MIG slices; a process can use only the first MIG
    slice. This creates no CUDA context.
    """
    import torch

    names = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    count = torch.cuda.device_count()
    if any(name.startswith("MIG") for name in names):
        return names
    return names[:count] or [str(number) for number in range(count)]


def missing(number: int, count: int) -> UserError:
    """Return the error for a missing GPU, with the number of GPUs that torch finds."""
    existing = "no GPU" if count == 0 else f"{count} GPU{'s' * (count > 1)}, numbered from 0"
    return UserError(f"there is no cuda:{number}: torch finds {existing}")
