"""Discovery of solutions by the folder and name of their files. No solution is imported."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from common import folders, interfaces
from common.digest import digest
from common.errors import UserError, did_you_mean
from common.folders import UNREADABLE, folders_in, left_out, may_bind, packages, python_files
from common.paths import CONTRIBUTORS, PEERS, ROOT
from common.printable import printable

PACKAGES = {
    "eager": "torch",
    "flash_attention": "flash_attn",
    "flash_linear_attention": "fla",
    "gather_scatter": "torch",
    "grouped_mm": "torch",
    "torch_compile": "torch",
}
"""The package that a peer needs, if its name differs from the peer's folder."""
EACH = "each_op.py"
"""The file in a peer's folder that has a solution of each op without a file of its own."""


@dataclass(frozen=True)
class Solution:
    """One solution's file: `<handle>/<op>.py` or `<handle>/<op>_<variant>.py`."""

    path: Path
    op: str

    @property
    def handle(self) -> str:
        """The name of the contributor's or peer's folder."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """`handle/file`, as on the board and in `--only`."""
        return f"{self.handle}/{self.path.stem}"

    @property
    def peer(self) -> bool:
        """Whether the solution is a library's."""
        return self.path.is_relative_to(PEERS)

    @property
    def note(self) -> str:
        """The first line of the module docstring, or ""; the module is not imported."""
        try:
            doc = ast.get_docstring(ast.parse(source_of(self.path).read_text()))
        except UNREADABLE:
            return ""
        return printable(doc.splitlines()[0]) if doc else ""

    @property
    def digest(self) -> str:
        """The digest of the solution, its helpers and its configurations."""
        return digest(self._files())

    @property
    def source_digest(self) -> str:
        """The digest of the solution and its helpers, for which configurations are tuned."""
        return digest(self._sources())

    def _files(self) -> list[Path]:
        tuned = (path for path in self.path.parent.glob("configs/*.json") if path.is_file())
        return [*self._sources(), *tuned]

    def _sources(self) -> list[Path]:
        """Return the file, the folder's helpers, and other solutions that the file imports."""
        folder = self.path.parent
        others = {solution.path for solution in _named(folder) if not solution.importer}
        others = {*others, folder / EACH}.difference(self.files)
        return [
            source_of(self.path),
            *(each for each in python_files(folder) if each not in others),
        ]

    @property
    def files(self) -> list[Path]:
        """The file, then those of its folder that it imports, directly or indirectly."""
        folder = self.path.parent

        def read(path: Path) -> str:
            inside = path.is_relative_to(folder)
            return source_of(path).read_text("utf-8", "replace") if inside else ""

        found = folders.closure(ROOT if self.peer else folder, self.path, read)
        return [path for path in found if path.is_relative_to(folder)]

    @property
    def importer(self) -> Path | None:
        """The first importer of this file, if it is a helper, which does not define the op."""
        if may_bind(self.path, self.op):
            return None
        others = sorted(path for path in python_files(self.path.parent) if path != self.path)
        return next((path for path in others if self.path.stem in packages(path)), None)


def source_of(path: Path) -> Path:
    """Return the file with a solution's source, which for a peer may be that of each op."""
    each = path.parent / EACH
    return each if each.is_file() and not path.exists() else path


def _named(folder: Path) -> list[Solution]:
    """Return a folder's files that are named after an op; some may be helpers.

    The longest matching name decides: `rope_v1` belongs to `rope`; `rotate_half` would belong to
    `rotate_half` even if there were an op `rotate`. A peer's folder with a file EACH has a solution
    of each op; see `source_of`.
    """
    solutions, ops = {}, sorted(interfaces.names(), key=len)
    if (folder / EACH).is_file():
        solutions = {folder / f"{op}.py": op for op in interfaces.known()}
    for path in filter(Path.is_file, folder.glob("[!_.]*.py")):
        matching = [op for op in ops if f"{path.stem}_".startswith(f"{op}_")]
        solutions.update((path, op) for op in matching[-1:])
    return [Solution(path, op) for path, op in sorted(solutions.items())]


def discover(root: Path = CONTRIBUTORS, *, helpers: bool = False) -> list[Solution]:
    """Find every solution below `root`, except in folders whose name begins with `_` or `.`.

    Folders in `left_out(root)` are skipped. With `helpers`, find helpers that are named after an op
    instead of solutions.
    """
    reasons = left_out(root)
    among = (folder for folder in folders_in(root) if folder.name not in reasons)
    named = [solution for folder in among for solution in _named(folder)]
    return [solution for solution in named if bool(solution.importer) == helpers]


def peers() -> tuple[list[Solution], dict[str, str]]:
    """Return the installed peers' solutions, and why each other handle is absent."""
    present, absent = [], {}
    for solution in discover(PEERS):
        package = package_of(solution.handle)
        if importlib.util.find_spec(package):
            present.append(solution)
        else:
            absent[solution.handle] = f"the package {package} is not installed"
    return present, absent


def package_of(peer: str) -> str:
    """Return the name of the package that a peer's folder needs."""
    return PACKAGES.get(peer, peer)


def everyone(installed: bool = True) -> list[Solution]:
    """Find all solutions: those of contributors, then of peers, by default those `installed`."""
    return [*discover(), *(peers()[0] if installed else discover(PEERS))]


def select(
    solutions: Iterable[Solution], op: str | None = None, only: str | None = None
) -> list[Solution]:
    """Select solutions by op, and by a list of handles or files as `is_among` has it; None is all.

    Raises:
        UserError: There is no such op, no such handle or file, or nothing is selected.
    """
    solutions = list(solutions)
    if op is not None and op not in (ops := interfaces.names()):
        close = did_you_mean(op, ops)
        raise UserError(f"unknown op {op!r}: there are {', '.join(ops)}{close}")
    if only is not None:
        for part in only.split(","):
            if not any(is_among(s.name, part) for s in solutions):
                raise UserError(_unknown(part, solutions))
        solutions = [s for s in solutions if is_among(s.name, only)]
    selected = [s for s in solutions if op in (None, s.op)]
    if not selected:
        of_op = f" of {op}" if op else ""
        raise UserError(f"{only} has no solution{of_op}" if only else f"no solution{of_op} yet")
    return selected


def is_among(name: str, only: str) -> bool:
    """Return whether `--only` selects a solution.

    For example, `house`, `house/rope.py` and `eager,house` all select `house/rope`.
    """
    parts = (part.removesuffix(".py").rstrip("/") for part in only.split(","))
    return any(part in (name, name.partition("/")[0]) for part in parts)


def _unknown(only: str, solutions: Iterable[Solution]) -> str:
    """Return the reason why no solution has a name: a misnamed file or a misspelt name."""
    folder = CONTRIBUTORS / only.partition("/")[0]
    if folder.name in left_out():
        return f"{only} is not among the solutions: contributors/{folder.name} is left out"
    if folder.is_dir() and not any(s.handle == folder.name for s in solutions):
        files = ", ".join(sorted(path.name for path in folder.glob("*.py")))
        fault = f"has no solution, only {files}" if files else "has no solution"
        advice = f"name a file OP.py or OP_NAME.py, where OP is {' or '.join(interfaces.names())}"
        return f"contributors/{folder.name} {fault}: {advice}"
    own = [s.name for s in solutions if "/" in only and s.handle == folder.name]
    names = sorted(own or {s.handle for s in solutions})
    close = did_you_mean(only, [s.name for s in solutions] if "/" in only else names)
    return f"unknown solution {only!r}: there are {', '.join(names)}{close}"
