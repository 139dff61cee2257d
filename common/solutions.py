"""Discovery of solutions by the folder and name of their files. No solution is imported."""

from __future__ import annotations

import ast
import importlib.util
import os
import symtable
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from common import interfaces
from common.digest import digest
from common.errors import UserError, did_you_mean
from common.paths import CONTRIBUTORS, PEERS
from common.printable import printable

NO_HANDLE = "a handle has letters, digits, - and _, and begins with a letter or a digit"
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
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OSError)
"""The errors of reading or parsing a file; the grader reports that the file does not import."""


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
    def text_digest(self) -> str:
        """The same with comments and blank lines: the key of results that may name a line."""
        return digest(self._files(), words=True)

    @property
    def source_digest(self) -> str:
        """The digest of the solution and its helpers, for which configurations are tuned."""
        return digest(self._sources())

    def _files(self) -> list[Path]:
        tuned = (path for path in self.path.parent.glob("configs/*.json") if path.is_file())
        return [*self._sources(), *tuned]

    def _sources(self) -> list[Path]:
        folder = self.path.parent
        others = {solution.path for solution in _named(folder) if not solution.importer}
        others.add(folder / EACH)
        return [
            source_of(self.path),
            *(path for path in python_files(folder) if path not in others),
        ]

    @property
    def importer(self) -> Path | None:
        """The first importer of this file, if it is a helper, which does not define the op."""
        if _may_bind(self.path, self.op):
            return None
        others = sorted(path for path in python_files(self.path.parent) if path != self.path)
        return next((path for path in others if self.path.stem in _packages(path)), None)


def source_of(path: Path) -> Path:
    """Return the file with a solution's source, which for a peer may be that of each op."""
    each = path.parent / EACH
    return each if each.is_file() and not path.exists() else path


def is_handle(name: str) -> bool:
    """Return whether a folder's name is valid on the board and in the list of `--only`.

    Letters of any script are valid, with their combining marks: `alice`, `김철수`, `हिन्दी`.
    """
    return name[:1].isalnum() and all(
        letter.isalnum() or letter in "-_" or unicodedata.category(letter).startswith("M")
        for letter in name
    )


def python_files(folder: Path) -> list[Path]:
    """Return the Python files below a contributor's folder, without hidden files."""
    paths = (path for path in folder.rglob("*.py") if not is_hidden(path, folder))
    return [path for path in paths if path.is_file()]


def is_hidden(path: Path, folder: Path) -> bool:
    """Return whether a part of a file's path below a folder begins with a dot.

    No import statement can name such a file. Emacs locks an unsaved `rope.py` with the broken link
    `.#rope.py`, and Jupyter keeps copies in `.ipynb_checkpoints/`.
    """
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _may_bind(path: Path, name: str) -> bool:
    """Return whether a file may bind the name at module level; true if it does not parse."""
    try:
        source = path.read_text()
        if f"\ndef {name}(" in source:  # true of most files; parsing thousands takes seconds
            return True
        symbols = symtable.symtable(source, str(path), "exec").get_symbols()
        bound = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
        return name in bound or any(module.endswith(".*") for module in imported(source))
    except UNREADABLE:
        return True


def imported(source: str) -> set[str]:
    """Return the imported dotted names: `common.spec` for `from common import spec`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            names |= {f"{start}.{alias.name}" for alias in node.names}
    return names


def _packages(path: Path) -> dict[str, str]:
    """Return the imported names of a file by their first part; none if it does not parse."""
    try:
        names = imported(path.read_text(errors="replace"))
    except UNREADABLE:  # a verdict reports the error
        return {}
    return {name.partition(".")[0]: name for name in sorted(names, reverse=True)}


OURS = {"common", "contributors", "tests"}
"""The packages of this repository, which no solution may import."""


def imports_of_ours(folder: Path) -> Iterator[str]:
    """Yield a line for each file of the folder that imports this repository's code."""
    for path in sorted(python_files(folder)):
        packages = _packages(path)
        if found := next(filter(None, map(packages.get, sorted(OURS))), None):
            yield (
                f"{folder.name}/{path.relative_to(folder)} imports {found}: a folder must also work"
                " outside of this repository; copy what it needs"
            )


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

    Args:
        root: The folder of the contributors' folders; folders in `left_out(root)` are skipped.
        helpers: Find only helpers that are named after an op, instead of solutions.
    """
    reasons = left_out(root)
    folders = [folder for folder in _folders(root) if folder.name not in reasons]
    named = [solution for folder in folders for solution in _named(folder)]
    return [solution for solution in named if bool(solution.importer) == helpers]


def left_out(root: Path = CONTRIBUTORS) -> dict[str, str]:
    """Return the folders that would stop a command or hide a peer, with the reasons."""
    faults = {folder.name: _fault_of(folder) for folder in _folders(root)}
    return {name: fault for name, fault in faults.items() if fault}


def _folders(root: Path) -> list[Path]:
    """Return the folders in a folder, and its links, whatever their target."""
    return sorted(path for path in root.glob("[!_.]*") if path.is_dir() or path.is_symlink())


def _fault_of(folder: Path) -> str:
    """Return the reason to leave out a folder: its name or one of its files; "" if it is fine."""
    if not is_handle(folder.name):
        return f"rename the folder, {NO_HANDLE}"
    if folder.parent == CONTRIBUTORS and (PEERS / folder.name).is_dir():
        return "rename the folder, a peer has its name"
    root = Path(os.path.realpath(folder.parent))
    try:
        for path in _entries(folder):
            name = path.relative_to(folder.parent)
            if not path.name.isprintable():
                return f"rename {str(name)!a}"
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                return f"{name} is a link out of {root.name}/"
            if path.suffix in (".py", ".json") and path.is_file():
                path.open("rb").close()
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    return ""


def _entries(folder: Path) -> Iterator[Path]:
    """Yield a folder and all unhidden files and folders below it, without following links.

    Raises:
        OSError: A folder cannot be read.
    """
    yield folder
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in [*folders, *files] if not name.startswith("."))


def _raise(error: OSError) -> NoReturn:
    raise error


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
    """Find all solutions: those of contributors first, then those of peers.

    Args:
        installed: Leave out peers whose library is not installed.
    """
    return [*discover(), *(peers()[0] if installed else discover(PEERS))]


def select(
    solutions: Iterable[Solution], op: str | None = None, only: str | None = None
) -> list[Solution]:
    """Select solutions by op, and by handle or file.

    Args:
        solutions: The solutions to select from.
        op: The name of an op; None for all.
        only: A comma-separated list of `HANDLE`, `HANDLE/FILE` or `HANDLE/FILE.py`; None for all.

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
    names = sorted({s.name if "/" in only else s.handle for s in solutions})
    close = did_you_mean(only, names)
    return f"unknown solution {only!r}: there are {', '.join(names)}{close}"
