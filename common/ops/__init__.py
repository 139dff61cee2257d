"""The operations, one file each. A new file here is a new op; nothing is registered.

A file that is not whole costs itself a line, which names the file and what is wrong in it, and no
other op anything. `docs/ops.md` makes an op from nothing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from common import interfaces
from common.errors import UserError
from common.interfaces import say_once
from common.spec import Op, Reference

if TYPE_CHECKING:
    from common.spec import Case, Tier


def names() -> list[str]:
    """Return the names of all ops that `load` takes."""
    return [name for name in interfaces.names() if isinstance(_loaded(name), Op)]


def load(name: str) -> Op[Any]:
    """Import one op by its name.

    Raises:
        UserError: The file does not import, or its OP is not whole.
    """
    found = _loaded(name)
    if isinstance(found, str):
        raise UserError(found)
    return found


def whole(several: Iterable[str]) -> list[Op[Any]]:
    """Return those of the named ops that can be asked; another one costs a line on stderr.

    Raises:
        UserError: None of them can be asked, though some are named.
    """
    from common.ops._whole import tried

    found, faults = [], []
    for name in sorted(set(several)):
        op = _loaded(name)
        if isinstance(op, Op) and not (fault := tried(op)):
            found.append(op)
        else:
            faults.append(op if isinstance(op, str) else fault)
    if faults and not found:
        raise UserError("; ".join(faults))
    for fault in faults:
        say_once(fault)
    return found


def cases(op: Op[Any], tier: Tier, device: str, alone: bool = False) -> list[Case]:
    """Return the cases of a tier as the device runs them; none, and a line, where a fault shows.

    Raises:
        UserError: A fault shows, and no other op is asked.
    """
    from common.ops._whole import listed

    cases = listed(op, tier, device)
    if isinstance(cases, str):
        if alone:
            raise UserError(cases)
        say_once(cases)
        return []
    return cases


@functools.cache
def _loaded(name: str) -> Op[Any] | str:
    """Return the op, or what is wrong with its file."""
    from common.ops._whole import checked

    try:
        interfaces.read(name)
    except UserError as error:
        return str(error)
    return checked(name, lambda: importlib.import_module(f"common.ops.{name}"))


def load_mistakes(op: str) -> Mapping[str, Reference]:
    """Import the mistakes that are easily made in an op: its reference with each, by name.

    An op need not have any.
    """
    name = f"common.ops.mistakes.{op}"
    if importlib.util.find_spec(name) is None:
        return {}
    mistakes: Mapping[str, Reference] = importlib.import_module(name).MISTAKES
    return mistakes
