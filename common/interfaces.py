"""The interface of each op, parsed from its file: no module of `common/ops` is imported.

The sources of a peer such as eager and the README's list of ops are generated from the interfaces,
without torch.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from common.errors import UserError
from common.paths import OPS, ROOT

WIDTH = 100
"""The most columns of a line."""
LAST = 1000
"""The order of an op whose file states none."""


@dataclass(frozen=True)
class Interface:
    """The signature of an op, and its position on boards."""

    op: str
    inputs: tuple[str, ...]
    options: tuple[str, ...]
    """The options with their defaults, as Python source: `interleaved=False`."""
    order: int = LAST
    tracks: tuple[str, ...] = ()
    """The tracks, if the file lists them as a literal."""

    @property
    def signature(self) -> str:
        """The op with its inputs and options: `rotate_half(x, *, interleaved=False)`."""
        options = ("*", *self.options) if self.options else ()
        return f"{self.op}({', '.join((*self.inputs, *options))})"

    @property
    def header(self) -> str:
        """The first lines of a function that takes all options as `**options`, formatted."""
        parameters = [f"{name}: torch.Tensor" for name in self.inputs]
        parameters += ["**options: Any"] * bool(self.options)
        begin, end, inner = f"def {self.op}(", ") -> torch.Tensor:", ", ".join(parameters)
        if len(begin + inner + end) <= WIDTH:
            return begin + inner + end
        if len(inner) + 4 <= WIDTH:
            return f"{begin}\n    {inner}\n{end}"
        return "\n".join([begin, *(f"    {parameter}," for parameter in parameters), end])

    def fill(self, template: str) -> str:
        """Return a solution's source from a template with `$op`, `$header` and `$arguments`.

        `$typing` is replaced by the import that the header of an op with options needs.
        """
        arguments = [f"{name}={name}" for name in self.inputs] + ["**options"] * bool(self.options)
        typing = "from typing import Any\n\n" if self.options else ""
        return Template(template).substitute(
            op=self.op, header=self.header, arguments=", ".join(arguments), typing=typing
        )


def names() -> list[str]:
    """Return the names of all ops, from the names of their files; a file may be incomplete."""
    return sorted(path.stem for path in OPS.glob("[!_.]*.py"))


def read(op: str) -> Interface:
    """Return the interface that an op's file defines.

    Raises:
        UserError: The file cannot be read, or defines no interface.
    """
    path = OPS / f"{op}.py"
    try:
        if (interface := _parsed(op, path.read_text(encoding="utf-8"))) is None:
            raise UserError(f"{shown(path)} defines no OP: see rotate_half.py")
        return interface
    except SyntaxError as error:
        raise UserError(f"{shown(path)}, line {error.lineno}: {error.msg}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{shown(path)}: {error}") from None


def known() -> dict[str, Interface]:
    """Return the interfaces in the order of boards; print a line for each file without one."""
    interfaces = {}
    for op in names():
        try:
            interfaces[op] = read(op)
        except UserError as error:
            say_once(str(error))
    return dict(sorted(interfaces.items(), key=lambda item: (item[1].order, item[0])))


@functools.cache
def say_once(line: str) -> None:
    """Print a fault of an op's file on stderr, once; the other ops do not need the file."""
    print(f"study: {line}: the other ops go on", file=sys.stderr)


def shown(path: Path) -> str:
    """Return the path of an op's file relative to the repository, for messages."""
    return str(path.relative_to(ROOT))


@functools.cache
def _parsed(op: str, source: str) -> Interface | None:
    """Return the interface; None if the source assigns no `OP`."""
    tree = ast.parse(source)
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    call = next((node.value for node in assigned if "OP" in map(ast.unparse, _targets(node))), None)
    if call is None:
        return None
    calls = [
        function_def for node in tree.body if _is_protocol(node) for function_def in _calls(node)
    ]
    if not calls:
        raise ValueError("no typing.Protocol with a `__call__` states the signature of solutions")
    arguments = calls[0].args
    options = [
        f"{option.arg}={_literal(default)}"
        for option, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    inputs = [posonlyarg.arg for posonlyarg in (*arguments.posonlyargs, *arguments.args)][1:]
    tracks = _constant(call, "tracks", ())
    return Interface(op, tuple(inputs), tuple(options), int(_constant(call, "order", LAST)), tracks)


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _is_protocol(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        ast.unparse(base).rpartition(".")[2] == "Protocol" for base in node.bases
    )


def _calls(node: ast.stmt) -> Iterator[ast.FunctionDef]:
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef) and child.name == "__call__":
            yield child


def _literal(default: ast.expr | None) -> str:
    if isinstance(default, ast.Constant) and isinstance(default.value, str):
        return f'"{default.value}"'
    return ast.unparse(default) if default else "..."


def _constant(call: ast.expr, name: str, default: Any) -> Any:
    """Return the constant in `OP = ...(..., name=constant)`, otherwise the default."""
    keywords = call.keywords if isinstance(call, ast.Call) else []
    for keyword in keywords:
        if keyword.arg == name:
            with contextlib.suppress(ValueError):
                return ast.literal_eval(keyword.value)
    return default
