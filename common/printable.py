"""Untrusted text, made safe to print: a terminal would execute its escape sequences."""

import functools
import shutil
import sys
import textwrap


def printable(text: str) -> str:
    r"""Return the text with a blank for each unprintable character.

    Escape characters, newlines and marks that reverse the direction of writing are unprintable.

    >>> printable("red: \x1b[31m")
    'red:  [31m'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def say(line: str, margin: str = "") -> None:
    """Print untrusted text as a line, wrapped as by `wrapped`."""
    print(wrapped(printable(line), margin), flush=True)


def complain(line: str) -> None:
    """Print a message of the command line on stderr."""
    print(f"study: {line}", file=sys.stderr)


complain_once = functools.cache(complain)
"""Prints a message the first time."""


def columns() -> int:
    """Return the width of the terminal on stdout; 0 if stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def wrapped(line: str, margin: str = "") -> str:
    """Return the line with a margin, broken between words where stdout is a narrower terminal."""
    if not (width := columns()):
        return margin + line
    return textwrap.fill(
        line,
        width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
