"""The choice of one GPU among several, made before torch is imported."""

from __future__ import annotations

import ctypes
import os

from common.errors import UserError
from common.processes import VISIBLE


def driver() -> bool:
    """Return whether CUDA's driver is installed, without which torch finds no GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def see_only(number: int) -> None:
    """Make one GPU the only one that this process and its children see, as `cuda`.

    The number counts those that are visible: number 1 of CUDA_VISIBLE_DEVICES=2,3 is GPU 3.

    Raises:
        UserError: Fewer are visible.
    """
    listed = os.environ.get(VISIBLE)
    names = None if listed is None else [name for name in listed.split(",") if name]
    if names is not None and number >= len(names):
        raise missing(number, len(names))
    os.environ[VISIBLE] = str(number) if names is None else names[number]


def visible() -> list[str]:
    """Return the GPUs that this process may see, as `CUDA_VISIBLE_DEVICES` names each.

    Where that variable is set it lists them: numbers, or UUIDs of GPUs or of MIG's slices, of which
    one process would see the first alone. No context is made on any of them.
    """
    import torch

    names = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    count = torch.cuda.device_count()
    if any(name.startswith("MIG") for name in names):
        return names
    return names[:count] or [str(number) for number in range(count)]


def missing(number: int, count: int) -> UserError:
    """Return that there is no GPU of this number, and how many torch finds."""
    several = "no GPU" if count == 0 else f"{count} GPU{'s' * (count > 1)}, numbered from 0"
    return UserError(f"there is no cuda:{number}: torch finds {several}")
