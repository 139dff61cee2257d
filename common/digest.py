"""Digests of sources: they change with the code, but not with its comments or docstrings."""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path

BETWEEN = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
"""The tokens between two statements, or before the first."""


def digest(paths: Iterable[Path], words: bool = False) -> str:
    """Return twelve hexadecimal digits that change when a file's name or code changes.

    Comments, docstrings and blank lines of Python are ignored: a row that was measured before a
    docstring was rewritten still belongs to its source. With `words` they are included, which
    takes a hundredth of the time, and suits caches whose entries can be recomputed.
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
        ast.parse(source)
        text = source.decode()
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return source
    lines = text.split("\n")
    words = [token for token in tokens if token.type == tokenize.COMMENT]
    # a blank line inside a string has no NL token, and stays
    blank = {token.start[0] for token in tokens if token.type == tokenize.NL}
    code = [token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    for before, token, after in zip([code[-1], *code], code, code[1:], strict=False):
        # a string that is a statement by itself, such as a docstring
        starts, ends = (each.type in BETWEEN or each.string == ";" for each in (before, after))
        if token.type == tokenize.STRING and starts and ends and "f" not in token.string[:2]:
            words.append(token)
    for token in sorted(words, key=lambda token: token.start)[::-1]:
        (first, start), (last, end) = token.start, token.end
        rest = lines[last - 1][end:]
        lines[first - 1 : last] = [lines[first - 1][:start] + rest, *[""] * (last - first)]
        blank |= set(range(first, last + 1))
    kept = [line.rstrip() for row, line in enumerate(lines, 1) if line.strip() or row not in blank]
    return "\n".join(kept).strip("\n").encode()
