"""The command line, `study`: its parser, and a one-line message for each mistake of the user."""

from __future__ import annotations

import argparse
import ast
import atexit
import gc
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from common.commands import options as shared
from common.errors import Kind, ServerEnded, UserError, did_you_mean, kind_of
from common.folders import left_out
from common.paths import COMMON
from common.printable import complain

COMMANDS = (
    "list", "grade", "check", "bench", "leaderboard", "export", "compile", "sanitize", "tune",
    "profile", "new",
)  # fmt: skip
"""The modules of `common.commands`, in the order of `--help`. A module is imported only if its
command is given. It defines `add_arguments(parser)` and `run(options)`, whose docstring is the
command's help. Torch is imported only when a command runs, so that help and messages about wrong
options appear at once."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code.

    A mistake of the user is one line on stderr and exit code 2; Ctrl-C is exit code 130.
    """
    # without it, a garbage collection over all torch objects delays the exit by half a second
    atexit.register(gc.freeze)
    try:
        options = _options(list(sys.argv[1:] if arguments is None else arguments))
        for name, reason in left_out().items():
            complain(f"contributors/{name} is left out: {reason}")
        sys.exit(options.run(options))
    except KeyboardInterrupt:
        kept = "all that bench or tune recorded is kept"
        complain(f"interrupted; {kept}: run the same command to continue")
        sys.exit(130)
    except Exception as error:
        if not (line := _message_of(error)):
            raise
        complain(line)
        sys.exit(2)


def _message_of(error: Exception) -> str:
    """Return a one-line message for an error that the user can correct, otherwise ""."""
    if isinstance(error, UserError | ServerEnded):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        hint = f"python -m pip install {package}, or take nox's Python, .nox/study/bin/python"
        return f"the package {package} is missing: {hint}"
    if isinstance(error, OSError):
        return f"{error.filename or 'the output'}: {error.strerror or error}"
    if kind_of(error) is Kind.OUT_OF_MEMORY:
        hint = "choose others with --op or --only; recorded results are kept"
        return f"a case needs more memory than the GPU has free: {hint}"
    return ""


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"study: {message}; see {self.prog} --help\n")


def _options(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words; the parser has all commands, but only the given command's options."""
    named = words[0] if words and not words[0].startswith("-") else ""
    if named and named not in COMMANDS:
        close = did_you_mean(named, COMMANDS)
        raise UserError(f"no command {named}: there are {', '.join(COMMANDS)}{close}")
    parser = _Parser(
        prog="python -m common", description="Grade, time and rank the study's solutions."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = commands.add_parser(name, help=(help := _help(name)), description=help)
        if name == named:
            module = importlib.import_module(f"common.commands.{name}")
            shared.add(command, "--op", "--only")
            module.add_arguments(command)
            command.set_defaults(command=command, run=module.run)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        known = options.command._option_string_actions
        close = did_you_mean(unknown[0].partition("=")[0], known)
        if not unknown[0].startswith("-"):
            close = f"; did you mean --only {unknown[0]}?"
        options.command.error(f"unrecognized arguments: {' '.join(unknown)}{close}")
    return options


def _help(name: str) -> str:
    """Return the docstring of a command's `run`, without an import of the command."""
    source = (COMMON / "commands" / f"{name}.py").read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return next(ast.get_docstring(node) or "" for node in functions if node.name == "run")
