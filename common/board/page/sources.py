"""A solution's files and README as HTML, with the contributor's text escaped."""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Container, Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from common.board.page.rendering import link
from common.printable import printable
from common.solutions import UNREADABLE, Solution, imported, python_files, source


def files(solution: Solution) -> dict[str, Path]:
    """Return the solution's file, then its direct and indirect helpers, by name.

    >>> list(files(Solution(Path("contributors/wkshin89/rope.py"), "rope")))
    ['rope.py', 'kernels.py']
    """
    folder = solution.path.parent
    found, others = [solution.path], sorted(python_files(folder))
    for path in found:  # which grows meanwhile
        names = _imported(path)
        found += [other for other in others if other not in found and other.stem in names]
    return {path.relative_to(folder).as_posix(): path for path in found}


def _imported(path: Path) -> set[str]:
    """Return each part of the imported dotted names; the folder is on Python's path."""
    try:
        return {part for name in imported(_read(path)) for part in name.split(".")}
    except UNREADABLE:
        return set()


@functools.cache  # several solutions may share a helper
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


def readme(folder: Path, names: Container[str]) -> Markup:
    """Return the folder's README as HTML, without the README's own HTML, pictures and scripts.

    A link to a solution's file leads to the solution's view. Other relative links are no links.

    Args:
        folder: The contributor's folder.
        names: Every solution, as `handle/file`.
    """

    def target(address: str) -> str:
        name = f"{folder.name}/{address.removeprefix('./').removesuffix('.py')}"
        if name in names:
            return link(view="solution", name=name)
        return address if address.startswith(("https://", "http://")) else ""

    path = folder / "README.md"
    if not path.is_file():
        return Markup("")
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    parser.normalizeLink = target  # type: ignore[method-assign, assignment]
    parser.validateLink = bool  # type: ignore[method-assign, assignment]
    tokens = parser.parse(_shown(path))
    for token in tokens:
        if token.tag in ("h1", "h2", "h3", "h4"):
            token.tag = f"h{int(token.tag[1]) + 2}"  # below the headings of the view
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else source(path)


def _shown(path: Path) -> str:
    """Return the text without invisible characters, since some reverse the order of the text."""
    return "\n".join(printable(line.expandtabs(4)) for line in _read(path).split("\n"))


def _kernel_lines(text: str) -> Iterator[int]:
    """Yield the line numbers of functions with `triton.jit`, their decorators included."""
    with contextlib.suppress(*UNREADABLE):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
                first = min(decorator.lineno for decorator in node.decorator_list)
                yield from range(first, (node.end_lineno or first) + 1)


def _is_jit(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(name).rpartition(".")[2] == "jit"
