"""The page's HTML: its templates, highlighted files, and its packing; all text is escaped."""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

from common.board import columns, ranking, table
from common.printable import printable
from common.solutions import source_of

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
        microseconds=lambda value: f"{value:,.1f}", short=lambda value: f"{value:.5g}"
    )
    environment.globals.update(
        direction_words=ranking.DIRECTION,
        figure=table.figure,
        link=link,
        place=columns.place,
        text_columns=table.TEXT,
        time=columns.time,
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


@functools.cache  # several solutions may share a helper
def lines(path: Path) -> Markup:
    """Return a highlighted file, Python or Markdown: an element for each line.

    Invisible characters become blanks, since some reverse the order of the text.
    """
    text = source_of(path).read_text(encoding="utf-8", errors="replace")
    shown = "\n".join(printable(line.expandtabs(4)) for line in text.split("\n"))
    lexer = get_lexer_for_filename(path.name, stripnl=False)
    drawn = highlight(shown, lexer, HtmlFormatter(nowrap=True)).removesuffix("\n").split("\n")
    line = Markup('<span class="line">{}\n</span>')
    return Markup("").join(line.format(Markup(each)) for each in drawn)


# --- the file -------------------------------------------------------------------------------------


def packed(data: Mapping[str, object]) -> str:
    """Return data as compressed JSON in base64, which the browser unpacks.

    Without a server that compresses the page, this keeps the file of a large board small. No text
    of a contributor can end the `<script>` element that holds it.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()
