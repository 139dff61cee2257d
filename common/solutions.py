"""Discovery of solutions by the place and name of their files. No solution is imported."""

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
"""The package that a peer needs, where it is not named like the peer's folder."""
EACH = "each_op.txt"
"""The file of a peer's folder from which its solution of each op is made that has no file."""
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OSError)
"""The errors of reading and parsing a file that does not import either, as the grader reports."""


@dataclass(frozen=True)
class Solution:
    """One file: `<handle>/<op>.py` or `<handle>/<op>_<variant>.py`."""

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
        """The first line of the module docstring, "" if there is none; read without importing."""
        try:
            doc = ast.get_docstring(ast.parse(source(self.path)))
        except UNREADABLE:
            return ""
        return printable(doc.splitlines()[0]) if doc else ""

    @property
    def digest(self) -> str:
        """The digest of the solution with its helpers and configurations."""
        tuned = (path for path in self.path.parent.glob("configs/*.json") if path.is_file())
        return digest([*self._sources(), *tuned], read=_content)

    @property
    def source_digest(self) -> str:
        """The digest of the solution with its helpers, which configurations are measured for."""
        return digest(self._sources(), read=_content)

    def _sources(self) -> list[Path]:
        folder = self.path.parent
        solutions = {solution.path for solution in _named(folder) if not solution.importer}
        return [self.path, *(path for path in python_files(folder) if path not in solutions)]

    @property
    def importer(self) -> Path | None:
        """The first file that imports this one, if it is a helper: a file without the op's name."""
        if _may_bind(self.path, self.op):
            return None
        others = sorted(path for path in python_files(self.path.parent) if path != self.path)
        return next((path for path in others if _imports(path, self.path.stem)), None)


def source(path: Path) -> str:
    """Return the source of a solution's file, or what a peer's solution without one consists of.

    For example, `common/peers/eager/rope.py` does not exist: `each_op.txt` beside it says what is
    in there, given the signature of `rope`.

    Raises:
        OSError: There is no such file.
    """
    template = path.parent / EACH
    if path.exists() or not template.is_file():
        return path.read_text()
    return interfaces.read(path.stem).fill(template.read_text())


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else source(path).encode()


def is_handle(name: str) -> bool:
    """Return whether a folder's name can stand on the board and in `--only`, between commas.

    Letters are of any script, with their marks: `alice`, `김철수`, `हिन्दी`.
    """
    return name[:1].isalnum() and all(
        letter.isalnum() or letter in "-_" or unicodedata.category(letter).startswith("M")
        for letter in name
    )


def python_files(folder: Path) -> list[Path]:
    """Return the Python files below a contributor's folder, without those of editors."""
    paths = (path for path in folder.rglob("*.py") if not is_hidden(path, folder))
    return [path for path in paths if path.is_file()]


def is_hidden(path: Path, folder: Path) -> bool:
    """Return whether a file below a folder has a name, or is in a folder, that begins with a dot.

    No import finds it. Emacs locks an unsaved `rope.py` by a link `.#rope.py` that leads nowhere,
    and Jupyter keeps copies in `.ipynb_checkpoints/`.
    """
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _may_bind(path: Path, name: str) -> bool:
    """Return whether a file's module may have the name; one that does not parse may have any."""
    try:
        source = path.read_text()
        if f"\ndef {name}(" in source:  # nearly every one: to parse thousands takes seconds
            return True
        table = symtable.symtable(source, str(path), "exec")
        bound = (
            symbol for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()
        )
        return any(each.get_name() == name for each in bound) or any(
            each.endswith(".*") for each in imported(source)
        )
    except UNREADABLE:
        return True


def _imports(path: Path, module: str) -> bool:
    """Return whether a file imports a module of the folder, which is on Python's path."""
    try:
        return any(each.partition(".")[0] == module for each in imported(path.read_text()))
    except UNREADABLE:
        return False


OURS = {"common", "contributors", "tests"}
"""The packages of this repository, which no solution may import."""


def imported(source: str) -> set[str]:
    """Return the dotted names that a source imports: `from common import spec` is `common.spec`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            names |= {f"{start}.{alias.name}" for alias in node.names}
    return names


def _op_of(stem: str, ops: Iterable[str] | None = None) -> str | None:
    """Return the op of a file, None if there is none; `ops` spares looking for their names.

    The longest fitting name counts: `rope_v1` is of `rope`, and `rotate_half` is of `rotate_half`
    even if there were an op `rotate`.
    """
    fitting = [op for op in ops or interfaces.names() if stem == op or stem.startswith(f"{op}_")]
    return max(fitting, key=len, default=None)


def _named(folder: Path) -> list[Solution]:
    """Return a folder's files that are named after an op; some may be helpers.

    A peer's folder may have a solution of each op, whose file need not exist; see `source`.
    """
    paths, ops = sorted(folder.glob("[!_.]*.py")), interfaces.names()
    solutions = [
        Solution(path, op) for path in paths if (op := _op_of(path.stem, ops)) and path.is_file()
    ]
    if (folder / EACH).is_file():
        solutions += [Solution(folder / f"{op}.py", op) for op in interfaces.known()]
    return sorted(set(solutions), key=lambda each: each.path)


def discover(root: Path = CONTRIBUTORS, *, helpers: bool = False) -> list[Solution]:
    """Find every solution below `root`; names that begin with `_` or `.` are no contributors'.

    Args:
        root: The folder of the contributors' folders; those of `left_out` are passed over.
        helpers: Find the files that are named after an op and are helpers in place of solutions.
    """
    unfit = left_out(root)
    folders = [folder for folder in _folders(root) if folder.name not in unfit]
    named = [solution for folder in folders for solution in _named(folder)]
    return [solution for solution in named if bool(solution.importer) == helpers]


def left_out(root: Path = CONTRIBUTORS) -> dict[str, str]:
    """Return why a folder is left out, by its name; it would stop a command, or hide another one.

    Of names that differ in case alone, which some disks take for one, the last is kept: of `Alice`
    and `alice`, `alice`.
    """
    folders, inside = _folders(root), Path(os.path.realpath(root))
    kept = {_caseless(folder): folder.name for folder in folders}
    found = {}
    for folder in folders:
        if root == CONTRIBUTORS and (PEERS / folder.name).is_dir():
            found[folder.name] = "rename the folder, a peer has its name"
        elif (other := kept[_caseless(folder)]) != folder.name:
            found[folder.name] = f"rename the folder, it differs from {other} in case alone"
        elif reason := _unfit(folder, inside):
            found[folder.name] = reason
    return found


def _folders(root: Path) -> list[Path]:
    """Return the folders of a folder, and links, wherever they lead."""
    return sorted(path for path in root.glob("[!_.]*") if path.is_dir() or path.is_symlink())


def _caseless(folder: Path) -> str:
    return unicodedata.normalize("NFC", folder.name).casefold()


def _unfit(folder: Path, inside: Path) -> str | None:
    """Return why a folder is no contributor's: by its name or a file of it; None if it is one.

    Args:
        folder: The folder.
        inside: The real path of the folder of all folders, out of which no link may lead.
    """
    if not is_handle(folder.name):
        return f"rename the folder, {NO_HANDLE}"
    try:
        for path in _entries(folder):
            name = path.relative_to(folder.parent)
            if not path.name.isprintable():
                return f"rename {str(name)!a}"
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
                return f"{name} is a link out of {inside.name}/"
            if path.suffix in (".py", ".json") and path.is_file():
                path.open("rb").close()
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    return None


def _entries(folder: Path) -> Iterator[Path]:
    """Yield a folder and all that is below it but what is hidden; links are not followed.

    Raises:
        OSError: A folder cannot be read.
    """

    def fail(error: OSError) -> NoReturn:
        raise error

    yield folder
    for place, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in [*folders, *files] if not name.startswith("."))


def peers() -> tuple[list[Solution], dict[str, str]]:
    """Return the peers whose library is installed, and why each other handle is absent."""
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
    """Find all contributors' solutions, then the peers'.

    Args:
        installed: Leave out the peers whose library is not installed.
    """
    return [*discover(), *(peers()[0] if installed else discover(PEERS))]


def select(
    solutions: Iterable[Solution], op: str | None = None, only: str | None = None
) -> list[Solution]:
    """Select solutions by op, and by handle or file.

    Args:
        solutions: The solutions to select from.
        op: The name of an op; None for all.
        only: `HANDLE`, `HANDLE/FILE` or `HANDLE/FILE.py`, or several with commas; None for all.

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
    """Return whether a solution is one of those that `--only` names.

    For example, `house/rope` is among `house`, `house/rope.py` and `eager,house`.
    """
    named = (part.removesuffix(".py").rstrip("/") for part in only.split(","))
    return any(each in (name, name.partition("/")[0]) for each in named)


def _unknown(only: str, solutions: Iterable[Solution]) -> str:
    """Return why nothing has that name: its files are not named after an op, or it is misspelt."""
    folder = CONTRIBUTORS / only.partition("/")[0]
    if folder.name in left_out():
        return f"{only} is not among the solutions: contributors/{folder.name} is left out"
    if folder.is_dir() and not any(s.handle == folder.name for s in solutions):
        files = ", ".join(sorted(path.name for path in folder.glob("*.py")))
        lacks = f"has no solution, only {files}" if files else "has no solution"
        wanted = f"name a file OP.py or OP_NAME.py, where OP is {' or '.join(interfaces.names())}"
        return f"contributors/{folder.name} {lacks}: {wanted}"
    names = sorted({s.name if "/" in only else s.handle for s in solutions})
    close = did_you_mean(only, names)
    return f"unknown solution {only!r}: there are {', '.join(names)}{close}"
