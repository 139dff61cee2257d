"""Texts of others, made safe to print: a terminal obeys escape sequences, whoever wrote them."""

import shutil
import sys
import textwrap


def printable(text: str) -> str:
    r"""Return the text with a blank for each character that prints nothing.

    Escape sequences, newlines and marks that turn the direction of writing are among them.

    >>> printable("red: \x1b[31m")
    'red:  [31m'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def wrapped(line: str, margin: str = "") -> str:
    """Return the line with a margin, broken between words where stdout is a narrower terminal."""
    if not sys.stdout.isatty():
        return margin + line
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        line,
        width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
