"""The source line that a reason names, and carets under the expression, for a terminal.

A reason is one line, such as `ValueError: ..., line 31 of rope.py: tl.arange(0, d)`. That line, as
`excerpt` returns it:

    rope.py:31
    31 |     col = tl.arange(0, d)
       |           ^^^^^^^^^^^^^^^
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from common.printable import printable
from common.source import is_code

_PLACE = re.compile(r"line (\d+) of ([^/\s:]+\.py)")


def place_of(reason: str) -> str:
    """Return the first place that a reason names, such as `line 31 of rope.py`, or ""."""
    found = _PLACE.search(reason)
    return found[0] if found else ""


def excerpt(reason: str, folder: Path) -> list[str]:
    """Return the lines that show each place of the reason in the folder's files."""
    return [line for found in _PLACE.finditer(reason) for line in _drawn(found, folder)]


def _drawn(found: re.Match[str], folder: Path) -> Iterator[str]:
    number, name = found.groups()
    path = folder / name
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    if not 0 < int(number) <= len(lines):
        return
    line = printable(lines[int(number) - 1])
    named = _common(found.string[found.end() :].removeprefix(": "), line)
    yield f"{name}:{number}"
    yield f"{number} | {line}"
    if named:
        yield f"{' ' * len(number)} | {' ' * line.index(named)}{'^' * len(named)}"


def _common(text: str, line: str) -> str:
    """Return the expression at the start of the text, after which words may follow.

    It is the longest start that the line has, "" where that is no code: the line has changed.
    """
    lengths = range(len(text), 0, -1)
    longest = next((text[:n].strip() for n in lengths if text[:n].strip() in line), "")
    return longest if is_code(longest) else ""
