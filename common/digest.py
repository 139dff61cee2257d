"""Digests of sources: they change when the code changes, and not when its words do."""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

Position = tuple[int, int]
"""A row, counted from 1, and a column."""


def digest(
    paths: Iterable[Path], words: bool = False, read: Callable[[Path], bytes] = Path.read_bytes
) -> str:
    """Return twelve hexadecimal digits that change when a file's name or code does.

    Comments, docstrings and blank lines of Python do not count: a row that was measured before a
    docstring was rewritten still belongs to its source. With `words` they do, in a hundredth of the
    time: for what can be found again, and is wanted at once. `read` returns the content of a path.
    """
    total = hashlib.sha256()
    for path in sorted(set(paths)):
        content = read(path)
        if path.suffix == ".py" and not words:
            content = code_of(content)
        total.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:12]


@functools.cache
def code_of(source: bytes) -> bytes:
    """Return Python source without comments, docstrings and blank lines.

    A source that is no Python is returned whole. For example, of

        # twice
        y = 2 * x  # the whole of x

    `y = 2 * x` is left.
    """
    try:
        text, tree = source.decode(), ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return source
    lines = text.split("\n")
    comments = [(token.start, token.end) for token in tokens if token.type == tokenize.COMMENT]
    # blank lines within a string have no such token, and stay
    idle = {token.start[0] for token in tokens if token.type == tokenize.NL}
    for (first, start), (last, end) in sorted([*comments, *_bare_strings(tree, lines)])[::-1]:
        rest = lines[last - 1][end:]
        lines[first - 1 : last] = [lines[first - 1][:start] + rest, *[""] * (last - first)]
        idle |= set(range(first, last + 1))
    kept = [line.rstrip() for row, line in enumerate(lines, 1) if line.strip() or row not in idle]
    return "\n".join(kept).strip("\n").encode()


def _bare_strings(tree: ast.AST, lines: list[str]) -> Iterator[tuple[Position, Position]]:
    """Yield where a string is a statement by itself, as a docstring is."""

    def place(row: int, column: int) -> Position:
        """Return the column in characters; ast counts bytes."""
        return row, len(lines[row - 1].encode()[:column].decode())

    for node in ast.walk(tree):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node.value.value, str) and node.end_lineno is not None:
            yield (
                place(node.lineno, node.col_offset),
                place(node.end_lineno, node.end_col_offset or 0),
            )
