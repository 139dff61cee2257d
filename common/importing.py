"""The packages that grading needs, and the import of torch.

The harness imports it, and so does the fork server, from which each worker is forked.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterable

NEEDED = ("torch", "triton", "numpy", "msgspec")
"""Packages without which nothing can be graded."""


def require(packages: Iterable[str] = NEEDED) -> None:
    """Raise ModuleNotFoundError for the first of the packages that is not installed."""
    for package in packages:
        if not importlib.util.find_spec(package):
            raise ModuleNotFoundError(name=package)


def import_torch() -> None:
    """Import torch, and what the first gradient would import otherwise, for 0.4 s."""
    gc.disable()  # nothing of torch is garbage: looking for it takes a tenth of the time
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    gc.freeze()
    gc.enable()
