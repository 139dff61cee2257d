"""The packages that grading needs, and the import of torch.

Torch is imported by the harness and by the fork server, from which each worker is forked.
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
    """Import torch, and the module that the first gradient would otherwise import in 0.4 s."""
    gc.disable()  # no object of torch is garbage, and collection takes a tenth of the import
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    gc.freeze()
    gc.enable()
