"""The command line, `study`: its parser, and one line for each mistake of the user."""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from common.commands import options as shared
from common.errors import ServerEnded, UserError, is_out_of_memory

COMMANDS = (
    "list", "grade", "check", "bench", "leaderboard", "compile", "sanitize", "tune", "profile",
    "new", "prune",
)  # fmt: skip
"""In the order of `--help`: modules of `common.commands`, imported where they are named. Each has
`add_arguments(parser)` and `run(options)`, whose docstring is the command's help; none imports
torch before it runs, so that help and messages about wrong options come at once."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code.

    A mistake of the user is one line on stderr and exit code 2; Ctrl-C is exit code 130.
    """
    # at its end Python would look for garbage among all objects of torch, for half a second
    atexit.register(gc.freeze)
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        options, unknown = _parser(given).parse_known_args(given)
        if unknown:
            options.command.error(f"unrecognized arguments: {' '.join(unknown)}")
        shared.name_left_out()
        sys.exit(options.run(options))
    except KeyboardInterrupt:
        kept = "what bench, tune or grade --json recorded is kept: the same command goes on from it"
        _complain(f"interrupted; {kept}")
        sys.exit(130)
    except Exception as error:
        if not (line := _explained(error)):
            raise
        _complain(line)
        sys.exit(2)


def _complain(line: str) -> None:
    print(f"study: {line}", file=sys.stderr)


def _explained(error: Exception) -> str:
    """Return one line for an error that the user can do something about, otherwise nothing."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        hint = f"python -m pip install {package}, or take nox's Python, .nox/study/bin/python"
        return f"the package {package} is missing: {hint}"
    if isinstance(error, SyntaxError):  # of an op's file, say: solutions are imported elsewhere
        return f"{error.filename}, line {error.lineno}: {error.msg}: {(error.text or '').strip()}"
    if isinstance(error, BrokenPipeError):
        return "the program that read the output has ended"
    if isinstance(error, OSError):
        hint = _HINTS.get(error.errno or 0, "")
        return f"{error.filename or 'a file'}: {error.strerror or error}{hint}"
    if isinstance(error, ServerEnded) and str(error):
        return str(error)
    if is_out_of_memory(error):
        hint = "choose others with --op or --only; what was recorded is kept"
        return f"a case needs more memory than the GPU has free: {hint}"
    return ""


_HINTS = {
    errno.EACCES: "; give your user access to it",
    errno.EROFS: "; clone the repository to a disk that you can write",
    errno.ENOSPC: "; free some space, then give the same command again",
}


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"study: {message}; see {self.prog} --help\n")


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that is given, or of all where none is."""
    parser = _Parser(
        prog="python -m common", description="Grade, time and rank the study's solutions."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in [each for each in COMMANDS if given[:1] == [each]] or COMMANDS:
        command = importlib.import_module(f"common.commands.{name}")
        help = command.run.__doc__
        added = commands.add_parser(name, help=help, description=help)
        added.set_defaults(run=command.run, command=added)
        if name != "prune":  # which drops what no board needs, whosever it is
            shared.selecting_arguments(added)
        command.add_arguments(added)
    return parser
