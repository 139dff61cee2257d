"""The operations, one file each. A new file here is a new op; nothing is registered."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from common.spec import Op


def names() -> list[str]:
    """Return the names of all ops, which are those of their files."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> Op[Any]:
    """Import one op by its name."""
    op: Op[Any] = importlib.import_module(f"common.ops.{name}").OP
    return op
