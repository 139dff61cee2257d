"""Templates, with all that they may call; every text that they draw is escaped."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from common.board import disturbances, parts, ranking, table
from common.board.page import rankings
from common.printable import printable

TEMPLATES = Path(__file__).parent / "templates"
DIRECTION_WORDS = {"forward": "forward", "backward": "forward + backward"}
BOTH = ' data-both=""'
"""Marks a column that two solutions show side by side; the text is this module's own."""
NAMES = ' translate="no"'
"""Marks a heading that stays in every language: a case's or a device's name, or an abbreviation."""


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
    environment.filters.update(_filters())
    environment.globals.update(_callables())
    return environment


@functools.cache
def link(**fields: str) -> str:
    """Return the link to a view; empty fields are left out.

    >>> link(view="solution", name="house/rope", row="")
    '#view=solution&name=house%2Frope'
    """
    return "#" + urlencode({name: value for name, value in fields.items() if value})


def _filters() -> dict[str, Any]:
    """Return the ways to write a value; a template calls a filter in half a function's time."""
    return {
        "key": _key,
        "microseconds": lambda value: f"{value:,.1f}",
        "percent": table.percentage,
        "short": lambda value: f"{value:.5g}",
        "size": table.size,
    }


def _callables() -> dict[str, Any]:
    return {
        "both": Markup(BOTH),
        "by_clock": disturbances.by_clock,
        "direction_words": DIRECTION_WORDS,
        "directions": rankings.directions,
        "half": table.half,
        "limit_name": lambda row: ranking.LIMITS[ranking.limit(row)[1]],
        "limits": set(ranking.LIMITS.values()),
        "link": link,
        "median": ranking.median,
        "memory": table.memory,
        "names": Markup(NAMES),
        "parts": parts.parts,
        "ranked_times": ranking.ranked_times,
        "ratio": ranking.ratio,
        "share": ranking.share,
        "text_columns": table.TEXT,
        "times": table.times,
        "top": rankings.top,
        "where": table.where,
    }


def _key(cell: str) -> str:
    """Return the number that a cell begins with, by which its column sorts; -1 without one.

    >>> _key("1,234.5‡ (12.0)")
    '1234.5'
    """
    found = re.match(r"[\d,]+(\.\d+)?", cell)
    return found[0].replace(",", "") if found else "-1"
