"""Render the page's templates with every text escaped, and pack the data into a page."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.board import ranking, table
from common.board.columns import Standing
from common.printable import printable

TEMPLATES = Path(__file__).parent / "templates"
DIRECTION_WORDS = {"forward": "forward", "backward": "forward + backward"}


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
    environment.filters.update(
        key=_key,
        microseconds=lambda value: f"{value:,.1f}",
        percent=table.percentage,
        short=lambda value: f"{value:.5g}",
    )
    environment.globals.update(
        by_clock=table.by_clock,
        direction_words=DIRECTION_WORDS,
        half_interval=table.half_interval,
        limit_name=lambda row: ranking.LIMITS[ranking.limit(row)[1]],
        limits=set(ranking.LIMITS.values()),
        link=link,
        place=_place,
        share=ranking.share,
        text_columns=table.TEXT,
        where=table.where,
    )
    return environment


@functools.cache
def link(**fields: str) -> str:
    """Return the link to a view; empty fields are left out.

    >>> link(view="solution", name="house/rope", row="")
    '#view=solution&name=house%2Frope'
    """
    return "#" + urlencode({name: value for name, value in fields.items() if value})


def _place(standing: Standing) -> str:
    """Return the place, such as `2`, `2=` for a tie, or a dash."""
    rank = standing.entry.rank
    if not (rank and standing.timed):
        return table.UNRANKED
    return f"{rank}{'=' * ([entry.rank for entry in standing.track.entries].count(rank) > 1)}"


def _key(cell: str) -> str:
    """Return the sort key of a cell: the number at its start, or -1 without a number.

    >>> _key("1,234.5‡ (12.0)")
    '1234.5'
    """
    match = re.match(r"[\d,]+(\.\d+)?", cell)
    return match[0].replace(",", "") if match else "-1"


def packed(data: Mapping[str, object]) -> str:
    """Return data as compressed JSON in base64, which the browser unpacks.

    Without a server that compresses the page, this keeps the file of a large board small. No text
    of a contributor can end the `<script>` element that holds it.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def policy(script: str, style: str) -> str:
    """Return a Content-Security-Policy that allows these inline texts and no network request."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
