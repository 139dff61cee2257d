"""Places in sources, which reasons name: `line 31 of rope.py: tl.arange(0, d)`."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from common.printable import printable


class Place(NamedTuple):
    """A place in a solution's file; its text is `line 31 of rope.py: tl.arange(0, d)`."""

    file: str
    """The name of the file, without its folder."""
    line: int
    code: str = ""
    """The expression at the place, or its whole line; "" if the file cannot be read."""

    def __str__(self) -> str:
        """Return the place in words."""
        return f"line {self.line} of {self.file}" + f": {self.code}" * bool(self.code)


class Reason(NamedTuple):
    """The words of a reason, and the places that they name."""

    text: str
    places: tuple[Place, ...] = ()


def of_frame(frame: FrameType) -> Place:
    """Return the location of the expression that a frame is executing."""
    positions = frame.f_code.co_positions()
    _, end, column, end_column = next(itertools.islice(positions, frame.f_lasti // 2, None))
    return place(frame.f_code.co_filename, frame.f_lineno, end, column, end_column)


def of_entry(entry: traceback.FrameSummary) -> Place:
    """Return the location of a traceback's entry."""
    line = entry.lineno or 0
    return place(entry.filename, line, entry.end_lineno, entry.colno, entry.end_colno)


def of_node(path: str, first: int, node: ast.expr | ast.stmt) -> Place:
    """Return the location of a kernel's syntax node.

    Its lines are counted from the kernel's `def`, line `first` of the file, and its columns without
    the indentation of that line.
    """
    line = linecache.getline(path, first)
    indent, above = len(line) - len(line.lstrip()), first - 1
    start, end = node.col_offset + indent, (node.end_col_offset or 0) + indent
    return place(path, above + node.lineno, above + (node.end_lineno or 0), start, end)


@functools.cache  # a kernel stores at a few places, often
def place(
    path: str, line: int, end: int | None, column: int | None, end_column: int | None
) -> Place:
    """Return the location with the source between two columns, which count bytes.

    If the columns do not delimit Python code, return the whole line: in a nested kernel the columns
    are wrong, because Triton has removed the indentation.
    """
    text = linecache.getline(path, line).rstrip()
    cut = text.encode()[column : end_column if end == line else None].decode(errors="replace")
    code = (cut if column is not None and is_code(cut) else text).strip()
    return Place(Path(path).name, line, code)


def is_code(text: str) -> bool:
    """Return whether the text is complete Python code."""
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False


# --- excerpts -------------------------------------------------------------------------------------


def excerpt(places: Iterable[Place], folder: Path, room: int | None = None) -> Iterator[str]:
    """Yield the lines of source at the places, in the folder's files.

    For `line 31 of rope.py: tl.arange(0, d)`, yield

        rope.py:31: col = tl.arange(0, d)
                          ^^^^^^^^^^^^^^^

    An expression that is the whole line is not marked. A line without it has changed since, or the
    place is in a file of a subfolder; it is not shown. A line has at most as many columns as there
    is `room`, and these show the expression.
    """
    for file, number, code in places:
        path = folder / Path(file).name
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        if 0 < number <= len(lines) and code in lines[number - 1]:
            line, code = printable(lines[number - 1].strip()), printable(code)
            head, start = f"{file}:{number}: ", line.index(code)
            width = len(line) if room is None else max(room - len(head), 1)
            cut = max(0, min(start, start + len(code) - width))  # keeps the expression
            yield f"{head}{line[cut:][:width]}"
            if code not in {"", line}:
                carets = " " * (start - cut) + "^" * len(code)
                yield " " * len(head) + carets[:width]
