"""The operations, one file for each op. A new file here is a new op; nothing is registered.

An invalid file is skipped with a line that names the file and the fault; other ops go on.
`docs/ops.md` shows how to write an op.
"""

from __future__ import annotations

import contextlib
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
    from common.spec import Tier


def names() -> list[str]:
    """Return the names of all ops that `load` accepts."""
    accepted = []
    for name in interfaces.names():
        with contextlib.suppress(UserError):
            accepted.append(load(name).name)
    return accepted


@functools.cache
def load(name: str) -> Op[Any]:
    """Import an op by its name.

    Raises:
        UserError: The file does not import, or its OP is invalid.
    """
    from common.ops import _whole

    interfaces.read(name)
    with _whole.faults_of(name):
        op: Op[Any] = importlib.import_module(f"common.ops.{name}").OP
        op = _whole.check(name, op)
    return op


def valid(op_names: Iterable[str], *tiers: Tier) -> list[Op[Any]]:
    """Return the valid ops among the named ops; print a line on stderr in place of each other op.

    The cases of the given tiers are valid too.

    Raises:
        UserError: No op is valid.
    """
    from common.ops import _whole

    found, faults = [], []
    for name in sorted(set(op_names)):
        try:
            op = load(name)
            with _whole.faults_of(name):
                _whole.check_by_trial(op, *tiers)
            found.append(op)
        except UserError as error:
            faults.append(str(error))
    if faults and not found:
        raise UserError("; ".join(faults))
    for fault in faults:
        say_once(fault)
    return found


def load_mistakes(op: str) -> Mapping[str, Reference]:
    """Import an op's common mistakes: by name, the reference with that mistake.

    An op without a file of mistakes has none.
    """
    name = f"common.ops.mistakes.{op}"
    if importlib.util.find_spec(name) is None:
        return {}
    return dict[str, Reference](importlib.import_module(name).MISTAKES)
