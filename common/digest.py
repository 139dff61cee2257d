"""Digests of sources: they change with the code, but not with its comments or docstrings."""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

Position = tuple[int, int]
"""A row, counted from 1, and a column."""


def digest(paths: Iterable[Path], words: bool = False) -> str:
    """Return twelve hexadecimal digits that change when a file's name or code changes.

    Comments, docstrings and blank lines of Python are ignored: a row that was measured before a
    docstring was rewritten still belongs to its source.

    Args:
        paths: The files.
        words: Include comments and docstrings. This takes a hundredth of the time, and suits caches
            whose entries can be recomputed.
    """
    total = hashlib.sha256()
    for path in sorted(set(paths)):
        content = path.read_bytes()
        if path.suffix == ".py" and not words:
            content = code_of(content)
        total.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:12]


@functools.cache
def code_of(source: bytes) -> bytes:
    """Return Python source without comments, docstrings and blank lines.

    A source that does not parse is returned unchanged. For example,

        # twice
        y = 2 * x  # the whole of x

    becomes `y = 2 * x`.
    """
    try:
        text, tree = source.decode(), ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return source
    lines = text.split("\n")
    comments = [(token.start, token.end) for token in tokens if token.type == tokenize.COMMENT]
    # a blank line inside a string has no NL token, and stays
    blank = {token.start[0] for token in tokens if token.type == tokenize.NL}
    for (first, start), (last, end) in sorted([*comments, *_bare_strings(tree, lines)])[::-1]:
        rest = lines[last - 1][end:]
        lines[first - 1 : last] = [lines[first - 1][:start] + rest, *[""] * (last - first)]
        blank |= set(range(first, last + 1))
    kept = [line.rstrip() for row, line in enumerate(lines, 1) if line.strip() or row not in blank]
    return "\n".join(kept).strip("\n").encode()


def _bare_strings(tree: ast.AST, lines: list[str]) -> Iterator[tuple[Position, Position]]:
    """Yield the start and end of each string that is a statement by itself, such as a docstring."""

    def position(row: int, column: int) -> Position:
        """Convert ast's column, in bytes, to characters."""
        return row, len(lines[row - 1].encode()[:column].decode())

    for node in ast.walk(tree):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node.value.value, str) and node.end_lineno is not None:
            yield (
                position(node.lineno, node.col_offset),
                position(node.end_lineno, node.end_col_offset or 0),
            )
