"""Options, answers and messages that several commands of `study` share."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from common import interfaces, solutions
from common.commands import gpus
from common.errors import UserError
from common.importing import require
from common.paths import PEERS, ROOT
from common.processes import VISIBLE
from common.solutions import Solution

if TYPE_CHECKING:
    from common.board.table import About

TIMED = {"forward": "forward", "backward": "with backward"}
"""What a time of each direction is of."""

# --- arguments ------------------------------------------------------------------------------------


def selecting_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--op` and `--only`, which every command but `prune` takes."""
    parser.add_argument("--op", help="only this op")
    parser.add_argument(
        "--only",
        metavar="HANDLE[/FILE]",
        help="only this contributor or file; several with commas: house,eager/rope",
    )


def running_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--device` and `--verbose`, for commands that run solutions."""
    parser.add_argument(
        "--device", type=device_argument, help="cpu, cuda or cuda:N; default: a GPU if there is one"
    )
    parser.add_argument(
        "--memory",
        type=gibibytes,
        metavar="GIB",
        help="of the GPU to take at most, CUDA contexts included; default: all that is free",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show each failure and the solutions' own output"
    )


def sample_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--sample`, the number of cases to draw from each op's."""
    parser.add_argument(
        "--sample", type=count, metavar="N", help="N random cases of each op, always the same ones"
    )


def handle_argument(parser: argparse.ArgumentParser) -> None:
    """Add the positional HANDLE[/FILE], which says the same as `--only`."""
    parser.add_argument("handle", nargs="?", metavar="HANDLE[/FILE]")


def count(text: str) -> int:
    """Return the positive number that the text spells, for argparse.

    Raises:
        argparse.ArgumentTypeError: The text spells none.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def gibibytes(text: str) -> int:
    """Return the bytes of a positive number of GiB, for argparse.

    Raises:
        argparse.ArgumentTypeError: The text spells none.
    """
    try:
        size = int(float(text) * (1 << 30))
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of GiB")
    return size


def device_argument(text: str) -> str:
    """Return the device that the text names, for argparse: `cpu`, `cuda` or `cuda:N`.

    Raises:
        argparse.ArgumentTypeError: The text names none.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no device: give cpu, cuda or cuda:1")
    return text


# --- answers --------------------------------------------------------------------------------------


def chosen(options: argparse.Namespace) -> list[Solution]:
    """Return the contributors' solutions and the installed peers that the options select.

    Raises:
        UserError: There is no such op, handle or file.
    """
    return _selected(solutions.everyone, options)


def contributors(options: argparse.Namespace) -> list[Solution]:
    """Return the contributors' solutions that the options select, without peers.

    Raises:
        UserError: There is no such op, handle or file.
    """
    return _selected(solutions.discover, options)


def _selected(find: Callable[[], list[Solution]], options: argparse.Namespace) -> list[Solution]:
    """Return the selected solutions, and say on stderr which selected files are helpers."""
    for solution in solutions.discover(helpers=True):
        named = solutions.is_among(solution.name, options.only or solution.name)
        if named and options.op in (None, solution.op) and (importer := solution.importer):
            beside = importer.relative_to(solution.path.parent)
            line = (
                f"{solution.name}.py is a helper: it has no {solution.op}, and {beside} imports it"
            )
            print(f"study: {line}", file=sys.stderr)
    return solutions.select(find(), options.op, options.only)


def missing_peers(options: argparse.Namespace, absent: Mapping[str, str]) -> str | None:
    """Return a line on the peers that are not installed, and the command that brings them.

    Args:
        options: Of all solutions, or of one op's; peers without that op are not missed.
        absent: Why each peer that is not installed is absent, by its folder's name.
    """
    peers = solutions.discover(PEERS)
    wanted = {peer.handle for peer in peers if options.op in (None, peer.op)} & absent.keys()
    if options.only or not wanted:
        return None
    kept = Path(sys.prefix) == ROOT / ".nox" / "study"
    command = "nox -s peers" if kept else "python -m common.tools.peers"
    return f"study: not on the board: {', '.join(sorted(wanted))} ({command} installs them)"


def one_of(positional: str | None, option: str | None, name: str) -> str:
    """Return a value that can be given by position or by option, `name` in messages.

    Raises:
        UserError: It is missing, the two differ, or several are given.
    """
    if positional and option and positional != option:
        raise UserError(f"{name} is given twice: {positional} and {option}")
    if not (given := positional or option):
        wanted = ", ".join(interfaces.names()) if name == "OP" else "the name of your folder"
        raise UserError(f"{name} is missing: give {wanted}")
    if "," in given:
        raise UserError(f"{name} is one, not several: {given}")
    return given


def writable(path: Path) -> Path:
    """Return the path if a file can stand there; asked before the work whose result it will hold.

    Raises:
        UserError: The path is a folder, or its folder does not exist.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: it is a folder, or its folder does not exist")
    return path


def device(options: argparse.Namespace) -> str:
    """Return `cpu` or `cuda`, as `found_device`, and say on stderr where a GPU has no bfloat16.

    Raises:
        ModuleNotFoundError: A package that grading needs is missing.
        UserError: A GPU is asked for and torch finds none, or not that one.
    """
    chosen = found_device(options)
    if chosen == "cuda":
        from common.grading.tiers import no_bfloat16

        if line := no_bfloat16(chosen):
            print(f"study: {line}", file=sys.stderr)
    return chosen


def found_device(options: argparse.Namespace) -> Literal["cpu", "cuda"]:
    """Return `cpu` or `cuda`: the device asked for, otherwise a GPU if there is one.

    `cuda:1` becomes the only GPU that this process and its children see, which to them is `cuda`.
    No context is made on a GPU. torch, whose import takes seconds, is not asked where no driver is
    there.

    Raises:
        ModuleNotFoundError: A package that grading needs is missing.
        UserError: A GPU is asked for and torch finds none, or not that one.
    """
    require()
    # torch would warn at exit about shared memory that killed workers had mapped
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    kind, _, number = (options.device or "").partition(":")
    if kind == "cpu" or (not kind and not gpus.driver()):
        return "cpu"
    listed = os.environ.get(VISIBLE)
    if number:
        gpus.see_only(int(number))
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if not kind:
        return "cpu"
    if not number:
        raise UserError("torch finds no GPU: leave --device out, or give cpu")
    # NVML counts those that are visible now; CUDA has read the choice and keeps it
    if listed is None:
        del os.environ[VISIBLE]
    else:
        os.environ[VISIBLE] = listed
    raise gpus.missing(int(number), torch.cuda.device_count())


# --- messages -------------------------------------------------------------------------------------


def name_left_out() -> None:
    """Say on stderr which contributors' folders no command takes, and why."""
    for name, reason in solutions.left_out().items():
        print(f"study: contributors/{name} is left out: {reason}", file=sys.stderr)


def left_out(op: str, case: str, reason: str) -> str:
    """Return the line on a case that does not fit the device."""
    return f"study: {op} {case} is left out, since it does not fit this device: {reason}"


def about(names: Container[str] | None = None) -> dict[str, About]:
    """Return note and digest of each solution by its name, for boards.

    Peers whose library is missing here are included: a record may come from another machine.

    Args:
        names: The solutions' names; None for all.
    """
    from common.board.table import About

    everyone = solutions.everyone(installed=False)
    return {
        solution.name: About(solution.note, solution.digest)
        for solution in everyone
        if names is None or solution.name in names
    }
