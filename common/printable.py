"""Untrusted text, made safe to print: a terminal would execute its escape sequences."""

import functools
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path
from unicodedata import east_asian_width


def printable(text: str) -> str:
    r"""Return the text with a blank for each unprintable character.

    Escape characters, newlines and marks that reverse the direction of writing are unprintable.

    >>> printable("red: \x1b[31m")
    'red:  [31m'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def plural(count: int, thing: str = "case", ending: str = "s") -> str:
    """Return a number of things in words: `23 board cases`."""
    return f"{count} {thing}{ending * (count != 1)}"


STYLES = {"red": "31", "green": "32", "bold": "1", "dim": "2"}
"""The codes of a terminal's styles."""


def say(line: str, margin: str = "", hang: str = "", **styles: str) -> None:
    """Print untrusted text as a line, wrapped as by `wrapped`, with its parts in the styles.

    For example, `say("rope: FAILED", red="FAILED")`.
    """
    print(styled(wrapped(printable(line), margin, hang), **styles), flush=True)


def styled(text: str, **styles: str) -> str:
    """Return the text with the first place of each part in a style of STYLES, on a terminal."""
    if columns() and not os.environ.get("NO_COLOR"):
        for style, part in styles.items():
            if not part:
                continue
            words = r"\s+".join(map(re.escape, part.split()))  # wrapping may have broken the part
            text = re.sub(f"({words})", f"\x1b[{STYLES[style]}m\\1\x1b[0m", text, count=1)
    return text


def translated(sentence: str) -> str:
    """Return an English sentence in Korean if that is the language and the sentence is known.

    `common/korean.toml` has the sentences; so it has those in the place of `{}`.
    """
    for pattern, words in _sentences():
        if found := pattern.fullmatch(sentence):
            return words.format(*map(translated, found.groups()))
    return sentence


@functools.cache
def _sentences() -> list[tuple[re.Pattern[str], str]]:
    """Return the known sentences; none unless LC_ALL, or else LANG, is Korean."""
    if not (os.environ.get("LC_ALL") or os.environ.get("LANG", "")).startswith("ko"):
        return []
    texts = tomllib.loads(Path(__file__).with_name("korean.toml").read_text("utf-8"))
    return [(re.compile(re.escape(text).replace(r"\{\}", "(.+?)"), re.DOTALL), words)
            for text, words in texts.items()]  # fmt: skip


def complain(line: str) -> None:
    """Print a message of the command line on stderr."""
    print(f"study: {line}", file=sys.stderr)


complain_once = functools.cache(complain)
"""Prints a message the first time."""


def columns() -> int:
    """Return the width of the terminal on stdout; 0 if stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def wrapped(line: str, margin: str = "", hang: str = "") -> str:
    """Return the line with a margin, broken between words where stdout is a narrower terminal.

    Further lines have `hang` after the margin. A Korean letter takes two columns.
    """
    if not (width := columns()):
        return margin + line
    lines, used = [margin], len(margin)
    for word in line.split():
        size = sum(1 + (east_asian_width(letter) in "WF") for letter in word)
        if used + size > width and lines[-1].strip():
            lines.append(margin + hang)
            used = len(margin + hang)
        lines[-1] += word + " "
        used += size + 1
    return "\n".join(each.rstrip() for each in lines)
