"""Source locations for reasons, such as `line 31 of rope.py: tl.arange(0, d)`."""

from __future__ import annotations

import ast
import itertools
import linecache
import traceback
from pathlib import Path
from types import FrameType


def of_frame(frame: FrameType) -> str:
    """Return the location of the expression that a frame is executing."""
    positions = frame.f_code.co_positions()
    _, end, column, end_column = next(itertools.islice(positions, frame.f_lasti // 2, None))
    return place(frame.f_code.co_filename, frame.f_lineno, end, column, end_column)


def of_entry(entry: traceback.FrameSummary) -> str:
    """Return the location of a traceback's entry."""
    line = entry.lineno or 0
    return place(entry.filename, line, entry.end_lineno, entry.colno, entry.end_colno)


def of_node(path: str, first: int, node: ast.expr | ast.stmt) -> str:
    """Return the location of a kernel's syntax node.

    Args:
        path: The kernel's file.
        first: The line of the kernel's `def`.
        node: The node, with lines counted from that `def`, and columns without its indentation.
    """
    line = linecache.getline(path, first)
    indent, above = len(line) - len(line.lstrip()), first - 1
    start, end = node.col_offset + indent, (node.end_col_offset or 0) + indent
    return place(path, above + node.lineno, above + (node.end_lineno or 0), start, end)


def place(path: str, line: int, end: int | None, column: int | None, end_column: int | None) -> str:
    """Return the location with the source between two columns, which count bytes.

    If the columns do not delimit Python code, return the whole line: in a nested kernel the columns
    are wrong, because Triton has removed the indentation.
    """
    where = f"line {line} of {Path(path).name}"
    text = linecache.getline(path, line).rstrip()
    cut = text.encode()[column : end_column if end == line else None].decode(errors="replace")
    shown = (cut if column is not None and is_code(cut) else text).strip()
    return f"{where}: {shown}" if shown else where


def is_code(text: str) -> bool:
    """Return whether the text is complete Python code."""
    try:
        return bool(ast.parse(text).body)
    except SyntaxError:
        return False
