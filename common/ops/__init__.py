"""One file an op. A new file here is a new op; nothing is registered."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from common.spec import Op


def names() -> list[str]:
    """Every op, by the name of its file."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> Op[Any]:
    op: Op[Any] = importlib.import_module(f"common.ops.{name}").OP
    return op
