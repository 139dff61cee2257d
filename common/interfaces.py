"""What the text of an op's file says, since a board imports no torch: its interface."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.paths import OPS, ROOT
from common.printable import complain_once


@dataclass(frozen=True)
class Interface:
    """The signature of an op, and its position on boards."""

    op: str
    signature: str
    """For example `rotate_half(x, *, interleaved=False)`."""
    contract: str
    """What it says of the arguments and the result."""
    order: int = 1000
    tracks: Mapping[str, str] = field(default_factory=dict)
    """The tracks with what their cases are, if the file has them as a literal."""


def names() -> list[str]:
    """Return the names of all ops, from the names of their files; a file may be incomplete."""
    return sorted(path.stem for path in OPS.glob("[!_.]*.py"))


def read(op: str) -> Interface:
    """Return the interface that the text of an op's file states.

    Raises:
        UserError: The file cannot be read, or defines no interface.
    """
    path, found = OPS / f"{op}.py", dict[str, Any]()
    try:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign([ast.Name("OP")], value) | ast.AnnAssign(ast.Name("OP"), _, value):
                    found["op"] = value
                case ast.ClassDef(bases=[ast.Name("Protocol") | ast.Attribute(attr="Protocol")]):
                    functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                    found |= {each.name: each for each in functions}
    except SyntaxError as error:
        raise UserError(f"{shown(path)}, line {error.lineno}: {error.msg}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{shown(path)}: {error}") from None
    if "op" not in found:
        raise UserError(f"{shown(path)} defines no OP: see rotate_half.py")
    if "__call__" not in found:
        lacks = "no typing.Protocol with a `__call__` states the signature of solutions"
        raise UserError(f"{shown(path)}: {lacks}")
    arguments, constants = found["__call__"].args, dict[str, Any]()
    contract = ast.get_docstring(found["__call__"]) or ""
    del (arguments.posonlyargs or arguments.args)[0]  # self
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    for keyword in getattr(found["op"], "keywords", ()):
        if keyword.arg in ("order", "tracks"):
            with contextlib.suppress(ValueError):
                constants[keyword.arg] = ast.literal_eval(keyword.value)
    signature = f"{op}({ast.unparse(arguments)})".replace("'", '"')
    return Interface(op, signature, contract, **constants)


def known() -> dict[str, Interface]:
    """Return the interfaces in the order of boards; print a line for each file without one."""
    interfaces = {}
    for op in names():
        try:
            interfaces[op] = read(op)
        except UserError as error:
            say_once(str(error))
    return dict(sorted(interfaces.items(), key=lambda item: (item[1].order, item[0])))


def say_once(line: str) -> None:
    """Print a fault of an op's file on stderr, once; the other ops do not need the file."""
    complain_once(f"{line}: the other ops go on")


def shown(path: Path) -> str:
    """Return the path of an op's file relative to the repository, for messages."""
    return str(path.relative_to(ROOT))
