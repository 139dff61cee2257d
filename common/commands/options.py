"""Options and messages that several commands of `study` share, and the choice of the device."""

from __future__ import annotations

import argparse
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from common import interfaces, solutions
from common.errors import UserError
from common.printable import complain
from common.processes import require
from common.solutions import Solution


def count(text: str) -> int:
    """Return the positive number of the text, for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def typed(text: str) -> str:
    """Return the handle, or the handle and file, of a name or of a path in this repository."""
    parts = (part.strip().removeprefix("./") for part in text.split(","))
    return ",".join(part.removeprefix("contributors/").rstrip("/") for part in parts)


OPTIONS: dict[str, dict[str, Any]] = {
    "--op": {"help": "only this op"},
    "--only": {
        "type": typed,
        "metavar": "HANDLE[/FILE]",
        "help": "only this contributor or file; several with commas: house,eager/rope",
    },
    "handle": {"nargs": "?", "type": typed, "metavar": "HANDLE[/FILE]"},
    "of": {"nargs": "?", "metavar": "OP", "help": "the same as --op, or a file of the folder"},
    "--device": {
        "choices": ("cpu", "cuda"),
        "help": "default: a GPU if there is one, the first of CUDA_VISIBLE_DEVICES",
    },
    "--verbose": {
        "action": "store_true",
        "help": "show each failure and the solutions' own output",
    },
    "--json": {
        "type": Path,
        "metavar": "FILE",
        "help": "write what is found to this file; -: to stdout, an object a line (docs/json.md)",
    },
    "--sample": {
        "type": count,
        "metavar": "N",
        "help": "N random cases of each op, always the same ones",
    },
}
"""The options that several commands have; `handle` is equivalent to `--only`."""
RUNNING = ("--device", "--verbose")
"""The options of the commands that run solutions."""


def add(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the named options of OPTIONS."""
    for name in names:
        parser.add_argument(name, **OPTIONS[name])


# --- values of options ----------------------------------------------------------------------------


def chosen(
    options: argparse.Namespace, find: Callable[[], list[Solution]] | None = None
) -> list[Solution]:
    """Return the contributors' solutions and the installed peers that the options select.

    Selected files that are helpers are named on stderr.

    Raises:
        UserError: There is no such op, handle or file.
    """
    for solution in solutions.discover(helpers=True):
        selected = solutions.is_among(solution.name, options.only or solution.name)
        if selected and options.op in (None, solution.op) and (importer := solution.importer):
            by = f"{importer.relative_to(solution.path.parent)} imports it"
            complain(f"{solution.name}.py is a helper: it has no {solution.op}, and {by}")
    return solutions.select((find or solutions.everyone)(), options.op, options.only)


def contributors(options: argparse.Namespace) -> list[Solution]:
    """Return the contributors' solutions that the options select, without peers; see `chosen`."""
    return chosen(options, solutions.discover)


def folder_of(options: argparse.Namespace) -> None:
    """Set `only` and `op` from what stands by position, HANDLE[/FILE] and OP.

    Raises:
        UserError: See `one_of`.
    """
    options.only = one_of(options.handle, options.only, "HANDLE")
    if options.of and options.of not in interfaces.names() and "/" not in options.only:
        options.only = f"{options.only}/{options.of}"
    elif options.of:
        options.op = one_of(options.of, options.op, "OP")


def one_of(positional: str | None, option: str | None, name: str) -> str:
    """Return the value of a positional argument or its equivalent option, `name` in messages.

    Raises:
        UserError: Both are missing, the two differ, or the value is a list.
    """
    if positional and option and positional != option:
        raise UserError(f"{name} is given twice: {positional} and {option}")
    if not (value := positional or option):
        wanted = ", ".join(interfaces.names()) if name == "OP" else "the name of your folder"
        raise UserError(f"{name} is missing: give {wanted}")
    if "," in value:
        raise UserError(f"{name} is one, not several: {value}")
    return value


def writable(path: Path) -> Path:
    """Return the path if a file can be written there; called before the work, which takes long.

    Raises:
        UserError: The path is a folder, or its folder does not exist.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: it is a folder, or its folder does not exist")
    return path


# --- the device -----------------------------------------------------------------------------------


def device(options: argparse.Namespace) -> Literal["cpu", "cuda"]:
    """Return `cpu` or `cuda`: the requested device, by default a GPU if there is one.

    Of several GPUs, `cuda` is the first that CUDA_VISIBLE_DEVICES names. This creates no CUDA
    context. Without a driver, torch, whose import takes seconds, is not imported.

    Raises:
        ModuleNotFoundError: A package that grading needs is missing.
        UserError: torch does not find the requested GPU.
    """
    require()
    # torch would warn at exit about shared memory that killed workers had mapped
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if options.device == "cpu" or not (options.device or driver()):
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if options.device:
        raise UserError("torch finds no GPU: leave --device out, or give cpu")
    return "cpu"


def gpu(options: argparse.Namespace) -> Literal["cuda"]:
    """Return `cuda`; raise UserError if there is none, for a command that needs a GPU."""
    if device(options) == "cpu":
        raise UserError(f"{options.command.prog.rpartition(' ')[2]} needs a GPU")
    return "cuda"


def driver() -> bool:
    """Return whether the CUDA driver, which torch needs to find a GPU, is installed."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
