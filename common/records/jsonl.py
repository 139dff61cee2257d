"""Typed lines of JSON, one a line, appended to a file and validated when they are read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from common import files
from common.errors import UserError

L = TypeVar("L")


@dataclass(frozen=True)
class Format(Generic[L]):
    """The lines that a kind of file holds."""

    decoder: msgspec.json.Decoder[L]
    """Decodes one line; it validates types, names and the schema's number."""
    schema: int
    command: str
    """The command that writes such a file."""

    def invalid(self, path: Path, number: int, reason: str, line: bytes = b"") -> UserError:
        """Return the error for a line that cannot be read, with the fix.

        Of a newer schema nothing is to be removed: it is the code here that is too old.
        """
        with contextlib.suppress(ValueError):
            stated = msgspec.json.decode(line, type=_Numbered).schema
            if stated > self.schema:
                problem = f"line {number} has schema {stated}, this checkout reads {self.schema}"
                return UserError(f"{path}: {problem}; update it (git pull), and keep the file")
        problem = f"line {number} is no record of schema {self.schema} ({reason})"
        return UserError(
            f"{path}: {problem}; remove that line, or the file, and run {self.command}"
        )


def read(path: Path, format: Format[L]) -> list[L]:
    """Return the file's lines in order; a file that is not there has none.

    A last line that a kill cut off is dropped with a notice on stderr.

    Raises:
        UserError: Any other line is not valid; the message names the file, the line, the reason and
            the fix.
    """
    return parse(path.read_bytes(), path, format) if path.exists() else []


def parse(raw: bytes, path: Path, format: Format[L]) -> list[L]:
    """Return the lines of a file's content; see `read`."""
    *whole, torn = raw.split(b"\n")
    if torn:
        print(f"study: dropped the last line of {path.name}, cut off in writing", file=sys.stderr)
    lines = []
    for number, line in enumerate(whole, start=1):
        try:
            lines.append(format.decoder.decode(line))
        except ValueError as error:  # of msgspec, and of bytes that are not UTF-8
            raise format.invalid(path, number, str(error), line) from None
    return lines


def encoded(lines: Iterable[msgspec.Struct | dict[str, Any]]) -> bytes:
    """Return lines as a file holds them."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


class _Numbered(msgspec.Struct):
    schema: int = 0


class Writer:
    """Appends lines to one file, each at once and whole, while no other process writes to it."""

    def __init__(self, path: Path) -> None:
        """Open the file at its end; a torn last line is cut off first.

        Raises:
            UserError: Another process is writing to the file.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)  # an interrupted write is not made up for later
        lock(self._file.fileno(), path.name)
        raw = path.read_bytes()
        self.content = bytearray(raw[: raw.rfind(b"\n") + 1])
        """Everything that was written."""
        os.truncate(path, len(self.content))
        self._left = self._stamp()

    def write(self, *lines: msgspec.Struct | dict[str, Any]) -> None:
        """Append lines, all at once, so that a kill of this process hardly ever parts them.

        Raises:
            UserError: Another process changed the file, and it is put back; or the disk is full.
        """
        self.check()
        rest = text = encoded(lines)
        try:
            while rest:  # a disk that fills up first takes a part without an error
                rest = rest[self._file.write(rest) :]
            self.content += text
        except OSError as error:
            os.truncate(self.path, len(self.content))
            fix = "make room there, and the same command goes on"
            raise UserError(f"{self.path}: {error.strerror}: {fix}") from None
        finally:
            self._left = self._stamp()

    def check(self) -> None:
        """Compare the file with what the last line left.

        Raises:
            UserError: Another process changed the file; it is put back, with the lines so far.
        """
        if self._put_back():
            name = self.path.name
            raise UserError(
                f"{name} was changed while it was written to: changed back; run it again"
            )

    def close(self) -> None:
        """Put the file back where it was changed, and close it."""
        self._put_back()
        os.fsync(self._file.fileno())
        self._file.close()

    def _put_back(self) -> bool:
        """Return whether the file was changed, and undo that."""
        if self._stamp() == self._left:
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(self.path, self.content)
        self._left = self._stamp()
        return True

    def _stamp(self) -> tuple[int, ...]:
        """Return the file's size, time and inode; nothing where it is gone."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return ()
        return found.st_size, found.st_mtime_ns, found.st_ino


def lock(descriptor: int, name: str) -> None:
    """Lock an open file or folder until it is closed.

    Raises:
        UserError: Another process has locked it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another run is writing to {name}: wait for it to end") from None
