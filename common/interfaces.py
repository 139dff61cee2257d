"""What the text of an op's file says, since a board imports no torch: interface and reference."""

from __future__ import annotations

import ast
import contextlib
import copy
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


# --- the code of a reference ----------------------------------------------------------------------


def reference_of(op: str) -> list[str]:
    """Return the statements of the op's reference, after those of all that it needs.

    Code of other files of `common` is among them, under other names.

    Raises:
        UserError: The file has no function `reference`.
    """
    path, code = OPS / f"{op}.py", dict[str, str]()
    needed = _Code(path, code)
    if "reference" not in needed.bound:
        raise UserError(f"{shown(path)}: has no function `reference`")
    needed.add("reference")
    return list(code.values())


class _Code(ast.NodeTransformer):
    """Collects a function of a file and all that it needs, without docstrings and annotations."""

    def __init__(self, path: Path, code: dict[str, str], prefix: str = "") -> None:
        """Read the file; `code` gets the code by name, with the prefix in front of each name."""
        self._code, self._prefix = code, prefix
        self.bound: dict[str, ast.stmt] = {}
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.Import(names) | ast.ImportFrom(names=names):
                    self.bound |= {each.asname or each.name: node for each in names}
                case (
                    ast.FunctionDef(name)
                    | ast.Assign([ast.Name(name)])
                    | ast.AnnAssign(ast.Name(name))
                ):
                    self.bound[name] = node

    def add(self, name: str) -> str:
        """Add what a name stands for, after what that needs, and return its name in the code."""
        node, known = self.bound[name], self._prefix + name
        if isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith("common"):
            path = ROOT / f"{module.replace('.', '/')}.py"
            return _Code(path, self._code, f"{path.stem.strip('_')}_").add(name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            known, node = name, copy.copy(node)
            node.names = [each for each in node.names if name in (each.asname, each.name)]
        if known not in self._code:
            self._code[known] = ""  # a function may call itself
            text = ast.unparse(self.visit(node))
            del self._code[known]
            self._code[known] = text
        return known

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Drop the docstring and the annotations."""
        if ast.get_docstring(node):
            del node.body[0]
        node.returns = None
        if node.name in self.bound:
            node.name = self._prefix + node.name
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Drop the annotation."""
        node.annotation = None
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Take a function of another op's file in place of `rotate_half.reference`."""
        op = node.value.id if isinstance(node.value, ast.Name) else ""
        path = OPS / f"{op}.py"
        if op not in self.bound or not path.is_file():
            return self.generic_visit(node)
        return ast.Name(_Code(path, self._code, f"{op}_").add(node.attr), node.ctx)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Add what the name stands for."""
        return ast.Name(self.add(node.id), node.ctx) if node.id in self.bound else node
