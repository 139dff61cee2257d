"""Contributors' folders: the folders that are left out, and the Python files and their imports."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import os
import re
import symtable
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from common.paths import CONTRIBUTORS, PEERS

NO_HANDLE = "a handle has letters, digits, - and _, and begins with a letter or a digit"
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OSError)
"""The errors of reading or parsing a file; the grader reports that the file does not import."""
OURS = {"common", "contributors", "tests"}
"""The packages of this repository, which no solution may import."""
IMPORTERS = ("import_module", "__import__")
"""The functions that import a module by its name."""


def is_handle(name: str) -> bool:
    """Return whether a folder's name is valid on the board and in the list of `--only`.

    Letters of any script are valid, with their combining marks: `alice`, `김철수`, `हिन्दी`.
    """
    return name[:1].isalnum() and all(
        letter.isalnum() or letter in "-_" or unicodedata.category(letter).startswith("M")
        for letter in name
    )


def folders_in(root: Path) -> list[Path]:
    """Return the folders in a folder, and its links, less those that begin with `_` or `.`."""
    return sorted(path for path in root.glob("[!_.]*") if path.is_dir() or path.is_symlink())


def left_out(root: Path = CONTRIBUTORS) -> dict[str, str]:
    """Return the folders that would stop a command or hide a peer, with the reasons."""
    faults = {folder.name: _fault_of(folder) for folder in folders_in(root)}
    return {name: fault for name, fault in faults.items() if fault}


def _fault_of(folder: Path) -> str:
    """Return the reason to leave out a folder: its name or one of its files; "" if it is fine."""
    if not is_handle(folder.name):
        return f"rename the folder, {NO_HANDLE}"
    if folder.parent == CONTRIBUTORS and (PEERS / folder.name).is_dir():
        return "rename the folder, a peer has its name"
    root = Path(os.path.realpath(folder.parent))
    try:
        for path in itertools.chain([folder], _entries(folder)):
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
    """Yield all unhidden files and folders below a folder, without following links.

    Raises:
        OSError: A folder cannot be read.
    """
    for path in folder.iterdir():
        if not path.name.startswith("."):
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from _entries(path)


# --- files and imports ----------------------------------------------------------------------------


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


def may_bind(path: Path, name: str) -> bool:
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


@functools.lru_cache(maxsize=1024)
def imported(source: str) -> frozenset[str]:
    """Return the imported dotted names: `common.spec` for `from common import spec`.

    `from . import tiles` gives `.tiles`, and `import_module("common.spec")` gives `common.spec`.
    """
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + f"{node.module}." * bool(node.module)
            names |= {start + alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(IMPORTERS):
            names |= {str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)}
    return frozenset(names)


def closure(root: Path, path: Path, read: Callable[[Path], str]) -> list[Path]:
    """Return a file, and all files below `root` that it imports, directly or indirectly.

    The root is on Python's path. `read` returns the text of a file; one that cannot be read or
    parsed imports nothing.
    """
    found = [path]
    for path in found:  # which grows meanwhile
        with contextlib.suppress(*UNREADABLE):
            for name in sorted(imported(read(path))):
                found += [file for file in executed(root, path, name) if file not in found]
    return found


def executed(root: Path, importer: Path, name: str) -> Iterator[Path]:
    """Yield the files below `root` that the import of a dotted name executes.

    For example `fast/__init__.py` and `fast/tiles.py` for `fast.tiles.Tile`.
    """
    level = len(name) - len(name.lstrip("."))
    above = [root, *importer.parents]
    place = above[min(level, len(above) - 1)]
    for part in name.lstrip(".").split("."):
        place /= part
        files = (place / "__init__.py", place.with_name(f"{part}.py"))
        if place.is_relative_to(root):
            yield from itertools.islice(filter(Path.is_file, files), 1)


def packages(path: Path) -> dict[str, str]:
    """Return the imported names of a file by their first part; none if it does not parse."""
    try:
        names = imported(path.read_text(errors="replace"))
    except UNREADABLE:  # a verdict reports the error
        return {}
    return {name.partition(".")[0]: name for name in sorted(names, reverse=True)}


def imports_of_ours(folder: Path) -> Iterator[str]:
    """Yield a line for each file of the folder that imports this repository's code."""
    for path in sorted(python_files(folder)):
        found = packages(path)
        if ours := sorted(OURS & found.keys()):
            yield (
                f"{folder.name}/{path.relative_to(folder)} imports {found[ours[0]]}: a folder must"
                " also work outside of this repository; copy what it needs"
            )


def printing(folder: Path) -> list[str]:
    """Return the names of the folder's files that print."""
    call = re.compile(r"^[^#\n]*\b(?:device_)?print\(", re.MULTILINE)
    texts = ((path.name, path.read_text(errors="replace")) for path in python_files(folder))
    return [name for name, text in texts if call.search(text)]
