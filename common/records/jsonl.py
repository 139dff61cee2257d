"""The file of a run: its lines are validated when they are read, and appended by one writer."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from common.errors import UserError
from common.printable import complain
from common.records.lines import SCHEMA, Anything, Run

DECODER = msgspec.json.Decoder(Anything)
"""Decodes one line, and validates its types, names and schema number."""


def read(path: Path) -> list[Anything]:
    """Return the file's lines in order; an empty list if the first line was cut off.

    If a kill cut the last line off, drop that line with a notice on stderr.

    Raises:
        UserError: A line is not valid or belongs to another run than the first line; the message
            names the file, the line, the reason and the fix.
    """
    *complete, torn = path.read_bytes().split(b"\n")
    if torn:
        complain(f"dropped the last line of {path.name}, cut off in writing")
    lines: list[Anything] = []
    for number, text in enumerate(complete, start=1):
        try:
            lines.append(DECODER.decode(text))
        except ValueError as error:  # from msgspec, or from bytes that are not UTF-8
            raise _invalid(path, number, str(error)) from None
        if lines[-1].run != lines[0].run or isinstance(lines[-1], Run) != (number == 1):
            foreign = "a file begins with its run and holds the lines of no other"
            raise _invalid(path, number, foreign)
    return lines


def _invalid(path: Path, number: int, reason: str) -> UserError:
    """Return the error for an invalid line, with the fix."""
    fix = "git pull if a newer checkout wrote it; else remove that line, or the file, and run bench"
    return UserError(f"{path}: line {number} is no record of schema {SCHEMA} ({reason}): {fix}")


class Writer:
    """Appends complete lines to a file, whose folder is locked against other writers."""

    def __init__(self, path: Path) -> None:
        """Open the file at its end, after removing an incomplete last line."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)  # no buffer writes the rest after an interrupt
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self._left = self._stamp()

    def write(self, *lines: msgspec.Struct | dict[str, Any]) -> None:
        """Append lines with one write, so that a kill of this process hardly ever separates them.

        Raises:
            UserError: Another process changed the file, or the disk is full.
        """
        if self._stamp() != self._left:
            fix = "remove it, and give the same command again"
            raise UserError(f"{self.path}: another process changed the file: {fix}")
        rest = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        try:
            while rest:  # a write to an almost full disk is short, without an error
                rest = rest[self._file.write(rest) :]
        except OSError as error:  # the next writer removes an incomplete line
            fix = "make room there, and the same command goes on"
            raise UserError(f"{self.path}: {error.strerror}: {fix}") from None
        finally:
            self._left = self._stamp()

    def close(self) -> None:
        """Write the file to the disk, and close it."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _stamp(self) -> tuple[int, ...]:
        """Return the file's size, time and inode; an empty tuple if the file does not exist."""
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self.path)
            return status.st_size, status.st_mtime_ns, status.st_ino
        return ()
