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


def of_node(source: str | None, node: ast.AST, folder: Path) -> str:
    """Return the location of a kernel's syntax node, or "" if no file of the folder has the kernel.

    Args:
        source: The kernel's source, from its `def` on.
        node: The node, with lines counted from that `def`.
        folder: The solution's folder.
    """
    if not source or not isinstance(node, ast.expr | ast.stmt):
        return ""
    for path in sorted(folder.glob("*.py")):
        before, kernel, _ = path.read_text(errors="replace").partition(source)
        if kernel:
            first, end = before.count("\n"), node.end_lineno or node.lineno
            columns = node.col_offset, node.end_col_offset
            return place(str(path), first + node.lineno, first + end, *columns)
    return ""


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
