"""`study export`: write solutions as a Python package that needs torch and Triton alone.

    DIR/torch-ext/NAME/<handle>/    what the solutions import, beside the folder's data and README
    DIR/tests/                      tests, and the ops' files, with which they compare

`templates/` has the other files of DIR by their paths. A contributor's modules import each other
from a folder on `sys.path`. In a package such an import is relative: `from launch import Plan`
becomes `from .launch import Plan`. No file is executed.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import keyword
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common import interfaces, paths, solutions
from common.board import markdown
from common.board.columns import COLUMNS
from common.board.devices import Device, about_solutions
from common.board.table import footnotes
from common.commands import options as shared
from common.digest import digest
from common.errors import UserError
from common.folders import IMPORTERS, OURS, UNREADABLE, closure, executed
from common.printable import complain, printable
from common.records import runs
from common.solutions import Solution
from common.source import Place

NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
"""A name in Hugging Face's `kernels`; in the package's name, `-` becomes `_`."""
OUTSIDE = {*sys.stdlib_module_names, "torch", "triton"}
"""The packages that an exported file may import; a folder's module of such a name is not found."""
LOADERS = {*IMPORTERS, "spec_from_file_location", "run_path", "run_module"}
"""The functions that import a module whose name may be computed."""
FROM = re.compile(r"from\b.*?\bimport\b", re.DOTALL)
OPERATOR = r"""(?<!\w)["'](?=\w+::[\w.{}]*["'])|\bLibrary\(\s*["']"""
"""What precedes the namespace in torch.library's names: `"alice::rope"`, `Library("alice"`."""
TORCHS = {"aten", "prim", "prims", "c10d", "_c10d_functional", "inductor"}
"""Namespaces of torch's own operators."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the solutions by position, and the folder to write."""
    parser.add_argument("names", nargs="*", metavar="HANDLE/FILE")
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="the folder to write")


def run(options: argparse.Namespace) -> int:
    """Write solutions as a Python package with a test: export HANDLE/FILE ... --to DIR."""
    options.only = ",".join(options.names) or options.only
    if not (options.only or options.op):
        raise UserError("HANDLE/FILE is missing: give the solutions to export")
    chosen = shared.chosen(options, functools.partial(solutions.everyone, installed=False))
    package = Package(options.to)
    for solution in chosen:
        try:
            package.add(solution)
        except UserError as error:
            complain(f"{solution.name} is not exported: {error}")
    if package.solutions:
        package.write()
        print(f"wrote {options.to}: {', '.join(each.name for each in package.solutions)}")
    return int(package.solutions != chosen)


# --- the package ----------------------------------------------------------------------------------


class Package:
    """A package to write: its solutions, and the modules of their folders and of their ops."""

    def __init__(self, folder: Path) -> None:
        """Take a folder, whose name the package gets.

        Raises:
            UserError: The folder is not empty, or no package can have its name.
        """
        self.folder, self.kernel = folder, folder.absolute().name.lower().replace("_", "-")
        self.name = self.kernel.replace("-", "_")
        if not NAME.fullmatch(self.kernel) or self.name in OUTSIDE or keyword.iskeyword(self.name):
            rule = "of two or more of a to z, digits, -, and no module of Python, torch or triton"
            raise UserError(f"--to {folder}: the package takes the folder's name, a name {rule}")
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise UserError(f"{folder} is there already: remove it, or give another --to")
        self.solutions: list[Solution] = []
        self.handles: dict[str, Modules] = {}
        self.ops = Modules(paths.ROOT)
        self.ops.add(Path("common", "grading", "tolerance.py"))

    def add(self, solution: Solution) -> None:
        """Add a solution, with all that it imports, and its op.

        Raises:
            UserError: The solution cannot be exported.
        """
        if solution.peer:
            library = solutions.package_of(solution.handle)
            raise UserError(f"it only calls the package {library}, which pip installs")
        name, folder = identifier(solution.handle), solution.path.parent
        modules = self.handles.get(name) or Modules(folder)
        if modules.root != folder:
            raise UserError(f"{modules.root.name} has the folder {name} of the package")
        modules.add(Path(solution.path.name))
        self.ops.add(Path("common", "ops", f"{solution.op}.py"))
        self.handles[name] = modules
        self.solutions.append(solution)

    @property
    def functions(self) -> dict[str, Solution]:
        """The solutions by the names of their functions: `rope`, or `alice_rope` if one of two."""
        ops = [solution.op for solution in self.solutions]
        names = (each.op if ops.count(each.op) == 1 else each.name for each in self.solutions)
        return dict(zip(map(identifier, names), self.solutions, strict=True))

    def signature(self, name: str, solution: Solution) -> str:
        """Return the signature of a function of the package; its op's if no `def` states it."""
        for file in closure(solution.path.parent, solution.path, Path.read_text):
            for node in ast.parse(file.read_text("utf-8-sig")).body:
                match node:
                    case ast.FunctionDef(solution.op, ast.arguments(kwarg=None) as given):
                        return f"{name}({ast.unparse(given)})".replace("'", '"')
        return name + interfaces.read(solution.op).signature.removeprefix(solution.op)

    def write(self) -> None:
        """Write the package, its tests, and what describes both."""
        code = self.folder / "torch-ext" / self.name
        for name, modules in self.handles.items():
            data = shutil.ignore_patterns("*.py", "*.pyc", "__pycache__", ".*")
            shutil.copytree(modules.root, code / name, ignore=data)
            modules.write(code / name, self.name)
        for page in code.rglob("*.md"):  # a link out of a contributor's folder leads nowhere here
            text = re.sub(r"!?\[([^]]*)\]\(\.\./[^)]*\)", r"\1", page.read_text("latin-1"))
            page.write_text(text, "latin-1")  # which keeps the bytes of any encoding
        self.ops.write(self.folder / "tests" / f"{self.name}_study", self.name)
        shutil.copy(paths.ROOT / "LICENSE", self.folder)
        written = [path for path in code.rglob("*") if path.is_file()]
        about = about_solutions()
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        environment.globals.update(
            package=self,
            identifier=identifier,
            escaped=markdown.escaped,
            project=tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"],
            interface=interfaces.read,
            devices=[Device(results, about) for results in runs.read_all() if results.timed],
            replace=replace,
            columns=[column for column in COLUMNS if column.text and column.name != "note"],
            footnotes=footnotes,
            suffixes=sorted({"json", "py"} | {path.suffix[1:] for path in written} - {""}),
            digest=lambda: digest(filter(Path.is_file, code.rglob("*")), words=True),
        )
        for template in environment.list_templates():
            if text := environment.get_template(template).render().strip():
                path = self.folder / template.format(name=self.name).removesuffix(".j2")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text + "\n", encoding="utf-8")


def identifier(name: str) -> str:
    """Return a name as an identifier: `alice_rope` for `alice/rope`, `_3d` for `3d`."""
    word = re.sub(r"\W", "_", name)
    return f"_{word}" if not word.isidentifier() or keyword.iskeyword(word) else word


# --- modules whose imports hold in a package ------------------------------------------------------


@dataclass(frozen=True)
class Modules:
    """The modules of a folder that a package gets, with relative imports."""

    root: Path
    texts: dict[Path, str] = field(default_factory=dict)
    """Their texts by their paths in the folder."""

    def add(self, path: Path) -> None:
        """Add a file and all files that it imports.

        Raises:
            UserError: One of them cannot be exported; none is added.
        """
        found = dict[Path, str]()
        for file in closure(self.root, self.root / path, self._read):
            path = file.relative_to(self.root)
            try:
                found[path] = _Imports(self.root, path, self._read(file)).relative()
            except UNREADABLE as error:
                raise UserError(f"{path}: {printable(str(error))}") from None
        self.texts.update(found)

    def _read(self, file: Path) -> str:
        """Return a file's text; a package of ours is empty, as its own code is the harness's."""
        ours = self.root == paths.ROOT and file.name == "__init__.py"
        return "" if ours else file.read_text("utf-8-sig")

    def write(self, folder: Path, package: str) -> None:
        """Write the modules; a package's operators get a namespace of this version's own."""
        version = digest((self.root / path for path in self.texts), words=True)
        unique = f"{package}_{identifier(self.root.name)}_{version}"
        for path, text in _with_operators(self.texts, unique).items():
            # only a solution's own file may have a name that nothing can import
            target = folder / path.with_stem(identifier(path.stem))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            for parent in path.parents:
                (folder / parent / "__init__.py").touch()


def _with_operators(texts: Mapping[Path, str], unique: str) -> Mapping[Path, str]:
    """Return the texts with a unique namespace for the operators that they define.

    So one process may import two versions of a package, or two packages with one operator.
    """
    used = "\n".join(texts.values())
    found = re.findall(rf"(?:{OPERATOR})(\w+)", used) if "library" in used else []
    if not (own := "|".join(set(found) - TORCHS)):
        return texts
    names = re.compile(rf"({OPERATOR}|\btorch\.ops\.)(?:{own})\b")
    return {path: names.sub(rf"\g<1>{unique}", text) for path, text in texts.items()}


class _Imports:
    """The imports of a file in a folder."""

    def __init__(self, root: Path, path: Path, text: str) -> None:
        self.root, self.path, self.text = root, path, text
        self.dots = "." * len(path.parts)
        self.nodes = list(ast.walk(ast.parse(text)))
        # an import of numpy, for example, that the author can do without
        branches = (node for node in self.nodes if isinstance(node, ast.Try | ast.If))
        self.optional = {each for branch in branches for each in ast.walk(branch)}

    def relative(self) -> str:
        """Return the file's text, in which the imports of the folder's modules are relative.

        Raises:
            UserError: It imports what a package does not have.
        """
        source = self.text.encode()  # ast's columns count bytes
        begins = [0, *itertools.accumulate(len(line) + 1 for line in source.split(b"\n"))]
        edits = []
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                first = begins[node.lineno - 1] + node.col_offset
                last = begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
                edits.append((first, last, self._statement(node, source[first:last].decode())))
            else:
                self._check(node)
        for first, last, text in sorted(edits, reverse=True):
            source = source[:first] + text.encode() + source[last:]
        return source.decode()

    def _statement(self, node: ast.Import | ast.ImportFrom, text: str) -> str:
        """Return an import as a package has it."""
        if isinstance(node, ast.Import):
            inside = [self._is_inside(node, alias.name) for alias in node.names]
            return "; ".join(map(self._import, node.names, inside)) if any(inside) else text
        name = node.module or ""
        if not node.level:
            head = f"from {self.dots}{name} import"
            ours = self._is_inside(node, f"{name}.{node.names[0].name}")
            return FROM.sub(head, text, count=1) if ours else text
        full = (f"{'.' * node.level}{name}.{alias.name}" for alias in node.names)
        found = not name or any(map(self._files, full))
        if node.level > len(self.dots) or not found:
            self._refuse(node, "it is outside of the folder")
        return text

    def _import(self, alias: ast.alias, inside: bool) -> str:
        """Return `import a.b` as statements: `from .a import b as _b; from . import a`."""
        if not inside:
            return f"import {ast.unparse(alias)}"
        package, _, last = alias.name.rpartition(".")
        if alias.asname or not package:
            return f"from {self.dots}{package} import {ast.unparse(ast.alias(last, alias.asname))}"
        submodule = f"from {self.dots}{package} import {last} as _{last}"
        return f"{submodule}; from {self.dots} import {package.partition('.')[0]}"

    def _files(self, name: str) -> list[Path]:
        return list(executed(self.root, self.root / self.path, name))

    def _is_inside(self, node: ast.stmt, name: str) -> bool:
        """Return whether a module is the folder's; refuse one that is not there in a package."""
        top = name.partition(".")[0]
        inside = top not in OUTSIDE and bool(self._files(name))
        if not (inside or top in OUTSIDE or node in self.optional):
            ours = f"{top} is a package of this repository"
            self._refuse(node, ours if top in OURS else f"it needs the package {top}")
        return inside

    def _check(self, node: ast.AST) -> None:
        """Refuse what finds modules or files in another way than an import statement."""
        match node:
            case ast.Call(ast.Name(name) | ast.Attribute(_, name), given) if name in LOADERS:
                known = given[0].value if given and isinstance(given[0], ast.Constant) else ""
                if str(known).partition(".")[0] not in OUTSIDE:
                    self._refuse(node, "it is a dynamic import")
            case ast.Attribute(ast.Name("sys"), "path"):
                self._refuse(node, "a package leaves sys.path as it is")
            case ast.Constant(str(text)) if ".." in Path(text).parts:
                self._refuse(node, "it is outside of the folder")
            case ast.Attribute(_, "parent") if ast.unparse(node).count(".parent") > len(self.dots):
                self._refuse(node, "it is outside of the folder")

    def _refuse(self, node: ast.stmt | ast.expr, why: str) -> NoReturn:
        line = printable(self.text.split("\n")[node.lineno - 1].strip())
        raise UserError(f"{Place(str(self.path), node.lineno, line)} ({why})")
