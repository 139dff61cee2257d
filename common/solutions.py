"""Discovery: paths to solutions, by their place and name alone. Nothing is imported."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.paths import CONTRIBUTORS, OPS, PEERS

PACKAGES = {
    "eager": "torch",
    "flash_linear_attention": "fla",
    "gather_scatter": "torch",
    "grouped_mm": "torch",
    "torch_compile": "torch",
}
"""The package that a peer's folder needs, where it has not the folder's name."""


@dataclass(frozen=True)
class Solution:
    """One file: `<handle>/<op>.py` or `<handle>/<op>_<variant>.py`."""

    path: Path
    op: str

    @property
    def handle(self) -> str:
        return self.path.parent.name

    @property
    def name(self) -> str:
        """`handle/file`, what the board and `--only` call it."""
        return f"{self.handle}/{self.path.stem}"

    @property
    def peer(self) -> bool:
        return self.path.is_relative_to(PEERS)

    @property
    def note(self) -> str:
        """The first line of the module docstring, read as text; empty where there is none."""
        try:
            doc = ast.get_docstring(ast.parse(self.path.read_text()))
        except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
            return ""  # it does not import either, and the grader says so
        return doc.splitlines()[0] if doc else ""

    @property
    def digest(self) -> str:
        """Of the solution with its helpers and configurations."""
        return digest([*self._sources(), *self.path.parent.glob("configs/*.json")])

    @property
    def source_digest(self) -> str:
        """Of the solution with its helpers alone: what configurations are measured for."""
        return digest(self._sources())

    def _sources(self) -> list[Path]:
        others = self.path.parent.rglob("*.py")
        return [self.path, *(path for path in others if not _is_solution(path))]


def digest(paths: Iterable[Path]) -> str:
    """Twelve hexadecimal digits that change when a file does."""
    total = hashlib.sha256()
    for path in sorted(set(paths)):
        total.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return total.hexdigest()[:12]


def op_names() -> list[str]:
    """Every op, by the name of its file; unlike `common.ops`, this imports no torch."""
    return sorted(path.stem for path in (OPS).glob("[!_]*.py"))


def _op_of(stem: str) -> str | None:
    """`rope_v1` is a rope; `rotate_half` is not a variant of some `rotate`."""
    fitting = [op for op in op_names() if stem == op or stem.startswith(f"{op}_")]
    return max(fitting, key=len, default=None)


def _is_solution(path: Path) -> bool:
    return _op_of(path.stem) is not None


def discover(root: Path = CONTRIBUTORS) -> list[Solution]:
    """Every solution below `root`; a folder that begins with `_` is none."""
    paths = sorted(root.glob("[!_.]*/[!_.]*.py"))
    return [Solution(path, op) for path in paths if (op := _op_of(path.stem))]


def peers() -> tuple[list[Solution], dict[str, str]]:
    """The peers whose library is importable, and why the others are absent."""
    present, absent = [], {}
    for solution in discover(PEERS):
        package = package_of(solution.handle)
        if importlib.util.find_spec(package):
            present.append(solution)
        else:
            absent[solution.handle] = f"the package {package} is not installed"
    return present, absent


def package_of(peer: str) -> str:
    """What a peer's folder imports."""
    return PACKAGES.get(peer, peer)


def everyone(installed: bool = True) -> list[Solution]:
    """Contributors, then peers; with `installed` only the peers whose library is importable."""
    contributors = discover()
    handles = {peer.handle for peer in discover(PEERS)}
    for solution in contributors:
        if solution.handle in handles:
            raise UserError(
                f"contributors/{solution.handle} has the name of a peer: rename the folder"
            )
    return [*contributors, *(peers()[0] if installed else discover(PEERS))]


def select(
    solutions: Iterable[Solution], op: str | None = None, only: str | None = None
) -> list[Solution]:
    """Those of one op, of one handle or file; a UserError where there is no such op or solution."""
    solutions = list(solutions)
    if op is not None and op not in op_names():
        raise UserError(f"unknown op {op!r}: there are {', '.join(op_names())}")
    if only is not None:
        only = only.removesuffix(".py").rstrip("/")
        named = [s for s in solutions if only in (s.handle, s.name)]
        if not named:
            raise UserError(_unknown(only, solutions))
        solutions = named
    selected = [s for s in solutions if op in (None, s.op)]
    if not selected:
        raise UserError(f"{only or 'nobody'} has no {op}" if op else "there is no solution yet")
    return selected


def _unknown(only: str, solutions: Iterable[Solution]) -> str:
    """Why nothing has that name: its files are named after no op, or it was misspelt."""
    folder = CONTRIBUTORS / only.partition("/")[0]
    if folder.is_dir() and not any(s.handle == folder.name for s in solutions):
        files = ", ".join(sorted(path.name for path in folder.glob("*.py"))) or "no Python file"
        wanted = " or ".join(f"{op}.py, {op}_NAME.py" for op in op_names())
        return f"contributors/{folder.name} has no solution but {files}: one is {wanted}"
    names: Iterator[str] = (s.name if "/" in only else s.handle for s in solutions)
    return f"unknown solution {only!r}: there are {', '.join(sorted(set(names)))}"
