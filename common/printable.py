"""Texts of others, made safe to print: a terminal obeys escape sequences, whoever wrote them."""

import re
import shutil
import sys
import textwrap

_BRACKETS = re.compile(r"\[[^][]{1,32}\]")
_FIXED = "\N{NO-BREAK SPACE}"


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
    """Return the line with a margin, broken between words where stdout is a narrower terminal.

    An index such as [0, 0, 0, 0] stays whole.
    """
    if not sys.stdout.isatty():
        return margin + line
    width = shutil.get_terminal_size().columns
    whole = _BRACKETS.sub(lambda found: found[0].replace(" ", _FIXED), line)
    filled = textwrap.fill(
        whole,
        width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(_FIXED, " ")
