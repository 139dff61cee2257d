"""A solution's files and README as HTML, with the contributor's text escaped."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from common.board.page.rendering import link
from common.disk_cache import DiskCache
from common.printable import printable
from common.solutions import Solution, source

LOWEST_HEADING = 6
"""HTML's lowest heading is `<h6>`."""
HEADING_OFFSET = 2
"""A README's `<h1>` becomes `<h3>`, below the headings of the view and of its README part."""


def files(solution: Solution) -> dict[str, Path]:
    """Return the solution's file, then its direct and indirect helpers, by name.

    >>> list(files(Solution(Path("contributors/wkshin89/rope.py"), "rope")))
    ['rope.py', 'kernels.py']
    """
    folder = solution.path.parent
    paths: dict[str, Path] = {}
    waiting = [solution.path]
    while waiting:
        path = waiting.pop(0)
        name = path.relative_to(folder).as_posix()
        if name not in paths and (path == solution.path or path.is_file()):
            paths[name] = path
            waiting += _helpers(path, folder)
    return paths


def all_lines(paths: Iterable[Path]) -> list[Markup]:
    """Return `lines` of each file, from the cache where the file has not changed."""
    cache = DiskCache("page", "sources", str)
    keys = {path: _key(path) for path in paths}
    drawn = {key: cache.found.get(key) or lines(path) for path, key in keys.items()}
    if drawn != cache.found:
        cache.found = drawn
        cache.save()
    return [Markup(drawn[key]) for key in keys.values()]


def _key(path: Path) -> str:
    """Return the digest of the file's text, which determines its lines."""
    return hashlib.sha256(f"{_read(path)}\0{_shown(path)}".encode()).hexdigest()


def lines(path: Path) -> Markup:
    """Return a highlighted Python file: an element for each line, marked within kernels."""
    text = _read(path)
    kernels = set(_kernel_lines(text))
    drawn = highlight(_shown(path), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return Markup("").join(
        Markup('<span class="line{}">{}\n</span>').format(
            " kernel" if number in kernels else "", Markup(line)
        )
        for number, line in enumerate(drawn.removesuffix("\n").split("\n"), start=1)
    )


def readme(folder: Path, names: Sequence[str]) -> Markup:
    """Return the folder's README as HTML, without the README's own HTML, pictures and scripts.

    A link to a solution's file leads to the solution's view. Other relative links have no target.

    Args:
        folder: The contributor's folder.
        names: Every solution, as `handle/file`.
    """
    path = folder / "README.md"
    if not path.is_file():
        return Markup("")
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(_shown(path))
    for token in _all(tokens):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1:]) + HEADING_OFFSET, LOWEST_HEADING)}"
        if token.type == "link_open":
            _redirect(token, folder.name, names)
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else source(path)


def _shown(path: Path) -> str:
    """Return the text without invisible characters, since some reverse the order of the text."""
    return "\n".join(printable(line.expandtabs(4)) for line in _read(path).split("\n"))


@functools.lru_cache(maxsize=8)
def _tree(text: str) -> ast.Module:
    """Return the syntax tree; an empty tree if the text does not parse."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _helpers(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of the folder that a file may import; the folder is on Python's path."""
    for name in _imported(_read(path)):
        for base in dict.fromkeys((folder, path.parent)):
            yield base / (name.replace(".", "/") + ".py")


@functools.lru_cache(maxsize=1000)
def _imported(text: str) -> list[str]:
    """Return the imported names; cached, since several files may import the same helper."""
    names: list[str] = []
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = [node.module] if node.module else []
            names += [*package, *(".".join([*package, alias.name]) for alias in node.names)]
    return names


def _kernel_lines(text: str) -> Iterator[int]:
    """Yield the line numbers of functions with `triton.jit`, their decorators included."""
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
            first = min(decorator.lineno for decorator in node.decorator_list)
            yield from range(first, (node.end_lineno or first) + 1)


def _is_jit(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(name).rpartition(".")[2] == "jit"


def _all(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or ())


def _redirect(token: Token, handle: str, names: Sequence[str]) -> None:
    """Redirect a link to a solution's view, keep an HTTP link, or remove the target."""
    target = str(token.attrs.get("href", ""))
    name = f"{handle}/{target.removeprefix('./').removesuffix('.py')}"
    if name in names:
        token.attrs["href"] = link(view="solution", name=name)
    elif target.startswith(("https://", "http://")):
        token.attrs["rel"] = "noopener noreferrer"
    else:
        token.attrs.clear()
