"""Render the page's templates with every text escaped, and pack the views into a page."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from common.board import columns, ranking, table
from common.printable import printable

TEMPLATES = Path(__file__).parent / "templates"
DIRECTION_WORDS = {"forward": "forward", "backward": "forward + backward"}
IN_COMPARISON = ' data-both=""'
"""Marks a column of the comparison of two solutions."""
ASCENDING = ' aria-sort="ascending"'
"""Marks the column by which a table is sorted initially."""
NO_TRANSLATE = ' translate="no"'
"""Marks a heading that is not translated: a case's or device's name, or an abbreviation."""


def draw(template: str, **context: Any) -> str:
    """Return the template's HTML."""
    return _environment().get_template(template).render(context)


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
    # registered as filters, not as functions: in Jinja a filter call costs half as much
    filters: dict[str, Any] = {
        "key": _key,
        "microseconds": lambda value: f"{value:,.1f}",
        "percent": table.percentage,
        "short": lambda value: f"{value:.5g}",
        "size": table.size,
    }
    environment.filters.update(filters)
    names: dict[str, Any] = {
        "ascending": Markup(ASCENDING),
        "both": Markup(IN_COMPARISON),
        "by_clock": table.by_clock,
        "compared": [
            column for column in columns.COLUMNS if column.style in ("speed", "share", "number")
        ],
        "direction_words": DIRECTION_WORDS,
        "half_interval": table.half_interval,
        "limit_name": lambda row: ranking.LIMITS[ranking.limit(row)[1]],
        "limits": set(ranking.LIMITS.values()),
        "link": link,
        "median": ranking.median,
        "memory": table.memory,
        "no_translate": Markup(NO_TRANSLATE),
        "parts": table.parts,
        "ranked_times": ranking.ranked_times,
        "ratio": ranking.ratio,
        "share": ranking.share,
        "text_columns": table.TEXT,
        "times": table.times,
        "where": table.where,
    }
    environment.globals.update(names)
    return environment


@functools.cache
def link(**fields: str) -> str:
    """Return the link to a view; empty fields are left out.

    >>> link(view="solution", name="house/rope", row="")
    '#view=solution&name=house%2Frope'
    """
    return "#" + urlencode({name: value for name, value in fields.items() if value})


def _key(cell: str) -> str:
    """Return the sort key of a cell: the number at its start, or -1 without a number.

    >>> _key("1,234.5‡ (12.0)")
    '1234.5'
    """
    match = re.match(r"[\d,]+(\.\d+)?", cell)
    return match[0].replace(",", "") if match else "-1"


# --- views packed into a page ---------------------------------------------------------------------

RAW = -15
"""zlib's `wbits` for a stream without a header, which browsers call `deflate-raw`."""


def packed(parts: Mapping[str, str]) -> str:
    """Return the parts as a JSON object of compressed texts in base64, by name.

    The browser unpacks a view when the view is shown. Without a server that compresses the page,
    this keeps the file of a board with many solutions small.
    """
    encoded_parts = {}
    for name, text in parts.items():
        compressor = zlib.compressobj(9, zlib.DEFLATED, RAW)
        compressed = compressor.compress(text.encode()) + compressor.flush()
        encoded_parts[name] = base64.b64encode(compressed).decode()
    return embedded(encoded_parts)


def embedded(data: Mapping[str, object]) -> str:
    """Return JSON for a `<script>` element of the page.

    `<` is escaped, so that a contributor's text cannot end the element.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")


def policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """Return a Content-Security-Policy that allows these inline texts and no network request."""
    return "; ".join((
        "default-src 'none'",
        f"script-src {_hashes(scripts)}",
        f"style-src {_hashes(styles)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ))  # fmt: skip


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
