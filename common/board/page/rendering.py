"""The page's HTML: its templates, the files of solutions, and its packing; all text is escaped."""

from __future__ import annotations

import ast
import base64
import contextlib
import functools
import json
import zlib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from common.board import columns, ranking, table
from common.folders import UNREADABLE
from common.printable import printable
from common.solutions import Solution, source_of

TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        microseconds=lambda value: f"{value:,.1f}",
        percent=table.percentage,
        short=lambda value: f"{value:.5g}",
    )
    environment.globals.update(
        by_clock=table.by_clock,
        direction_words=ranking.DIRECTION,
        figure=table.figure,
        limit_name=lambda row: ranking.LIMITS[ranking.limit(row)[1]],
        link=link,
        place=columns.place,
        share=ranking.share,
        text_columns=table.TEXT,
        time=columns.time,
        where=table.where,
    )
    return environment


def draw(template: str, **context: Any) -> str:
    """Return the template's HTML."""
    return _environment().get_template(template).render(context)


@functools.cache
def link(**fields: str) -> str:
    """Return the link to a view; empty fields are left out.

    >>> link(view="solution", name="house/rope", row="")
    '#view=solution&name=house%2Frope'
    """
    return "#" + urlencode({name: value for name, value in fields.items() if value})


# --- a solution's files and README ----------------------------------------------------------------


def files(solution: Solution) -> dict[str, Path]:
    """Return the solution's file, then its direct and indirect helpers, by name.

    >>> list(files(Solution(Path("contributors/wkshin89/rope.py"), "rope")))
    ['rope.py', 'kernels.py']
    """
    folder = solution.path.parent
    return {path.relative_to(folder).as_posix(): path for path in solution.files}


@functools.cache  # several solutions may share a helper
def lines(path: Path) -> Markup:
    """Return a highlighted Python file: an element for each line, marked within kernels."""
    kernels = set(_kernel_lines(_read(path)))
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
    text = parser.renderer.render(tokens, parser.options, {})
    return Markup(text.replace("<pre>", '<pre tabindex="0">'))  # keys scroll a wide block


def _read(path: Path) -> str:
    return source_of(path).read_text(encoding="utf-8", errors="replace")


def _shown(path: Path) -> str:
    """Return the text without invisible characters, since some reverse the order of the text."""
    return "\n".join(printable(line.expandtabs(4)) for line in _read(path).split("\n"))


def _kernel_lines(text: str) -> Iterator[int]:
    """Yield the line numbers of functions with `triton.jit`, their decorators included."""
    with contextlib.suppress(*UNREADABLE):
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            names = [ast.unparse(each).partition("(")[0] for each in node.decorator_list]
            if any(name.rpartition(".")[2] == "jit" for name in names):
                first = min(decorator.lineno for decorator in node.decorator_list)
                yield from range(first, (node.end_lineno or first) + 1)


# --- the file -------------------------------------------------------------------------------------


def packed(data: Mapping[str, object]) -> str:
    """Return data as compressed JSON in base64, which the browser unpacks.

    Without a server that compresses the page, this keeps the file of a large board small. No text
    of a contributor can end the `<script>` element that holds it.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()
