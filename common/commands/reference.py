"""The code of an op's reference and of all that it needs, for a file that needs nothing of ours."""

from __future__ import annotations

import ast
import copy
from pathlib import Path

from common.errors import UserError
from common.interfaces import shown
from common.paths import OPS, ROOT


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
                case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                    self.bound[name] = node
                case ast.FunctionDef(name):
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
