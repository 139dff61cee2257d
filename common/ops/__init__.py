"""The operations, one file each. A new file here is a new op; nothing is registered."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.spec import Op, Reference


def names() -> list[str]:
    """Return the names of all ops, which are those of their files."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> Op[Any]:
    """Import one op by its name.

    Raises:
        UserError: The file defines no OP.
    """
    module = importlib.import_module(f"common.ops.{name}")
    if not hasattr(module, "OP"):
        raise UserError(f"common/ops/{name}.py defines no OP: see rotate_half.py")
    op: Op[Any] = module.OP
    return op


def load_mistakes(op: str) -> Mapping[str, Reference]:
    """Import the mistakes that are easily made in an op: its reference with each, by name.

    An op need not have any.
    """
    name = f"common.ops.mistakes.{op}"
    if importlib.util.find_spec(name) is None:
        return {}
    mistakes: Mapping[str, Reference] = importlib.import_module(name).MISTAKES
    return mistakes
