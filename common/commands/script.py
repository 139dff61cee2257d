"""`study check --case NAME --script FILE`: write a case as a script of torch and Triton alone.

It has the inputs, the op's reference, the call and the comparison: for an issue or a debugger.
"""

from __future__ import annotations

import ast
import base64
import copy
import zlib
from pathlib import Path
from string import Template
from typing import Any

import torch

from common import paths
from common.commands.answers import Answer
from common.ops._draw import draw, given
from common.solutions import Solution

TEMPLATE = Path(__file__).parent / "templates" / "script.txt"
MOST_KEPT = 1 << 13
"""The most elements of a tensor whose very values are in the script; larger ones are drawn anew."""
SEED = 0


def written(answer: Answer, solution: Solution) -> str:
    """Return the script of a graded case."""
    op, case = answer.op, answer.case
    arguments, grad_output = draw(op, case, SEED, "cpu")
    inputs, options = given(op, arguments)
    code = dict[str, str]()
    _Needs(paths.OPS / f"{op.name}.py", code).add("reference")
    differentiable = list(op.differentiable) if "backward" in case.directions else []
    failures = [failure for _, failure in answer.failures] or [*answer.verdicts.values()]
    said = [f"{each.direction}: {each.verdict} {each.reason}" for each in failures]

    def entries(names: list[str]) -> str:
        lines = (_entry(name, arguments[name], name in differentiable) for name in names)
        return "\n".join(lines)

    return Template(TEMPLATE.read_text()).substitute(
        title=f"{solution.name} in the case {case.name}.",
        reason="\n".join(said).replace("\\", "/").replace('"""', "'''"),
        command=f"nox -s check -- {solution.name} --case {case.name} --script FILE",
        op=op.name,
        path=solution.path.relative_to(paths.ROOT),
        slack=op.slack[case.dtype],
        reference="\n\n".join(code.values()),
        inputs=entries([*inputs]),
        options=entries([*options]),
        upstream=_literal(grad_output, False),
        differentiable=differentiable,
    )


def _entry(name: str, value: Any, grad: bool) -> str:
    return f'    "{name}": {_literal(value, grad)},'


def _literal(value: Any, grad: bool) -> str:
    """Return an argument as an expression."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    once = tuple(slice(0, None if stride else 1) for stride in value.stride())
    values: str | float = ""
    if value.is_floating_point() and value.numel() > MOST_KEPT:
        values = float(value[once].double().std())
    elif value.numel():
        raw = value[once].contiguous().flatten().view(torch.uint8).numpy().tobytes()
        values = base64.b85encode(zlib.compress(raw, 9)).decode()
    layout = [*value.shape], [*value.stride()], value.storage_offset()
    dtype = str(value.dtype).removeprefix("torch.")
    given = ", ".join(map(repr, (dtype, *layout, values)))
    return f"tensor({given}{', grad=True' * grad})"


class _Needs(ast.NodeTransformer):
    """Collects a function of an op's file and all that it needs, without annotations."""

    def __init__(self, path: Path, code: dict[str, str], prefix: str = "") -> None:
        """Read the file; `code` gets the code by name, with the prefix in front of each name."""
        self._code, self._prefix = code, prefix
        self._bound: dict[str, ast.stmt] = {}
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.Import(names) | ast.ImportFrom(names=names):
                    self._bound |= {each.asname or each.name: node for each in names}
                case ast.FunctionDef(name) | ast.Assign([ast.Name(name)]):
                    self._bound[name] = node

    def add(self, name: str) -> str:
        """Add what a name stands for, after what that needs, and return its name in the script."""
        node, known = self._bound[name], self._prefix + name
        if isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith("common"):
            path = paths.ROOT / f"{module.replace('.', '/')}.py"
            return _Needs(path, self._code, f"{path.stem.strip('_')}_").add(name)
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
        if node.name in self._bound:
            node.name = self._prefix + node.name
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Drop the annotation."""
        node.annotation = None
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Take a function of another op's file in place of `rotate_half.reference`."""
        op = node.value.id if isinstance(node.value, ast.Name) else ""
        path = paths.OPS / f"{op}.py"
        if op not in self._bound or not path.is_file():
            return self.generic_visit(node)
        return ast.Name(_Needs(path, self._code, f"{op}_").add(node.attr), node.ctx)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Add what the name stands for."""
        return ast.Name(self.add(node.id), node.ctx) if node.id in self._bound else node
