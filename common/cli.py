"""The command line, `study`: each command is one function, its docstring the help."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from common import paths, solutions
from common.commands import bench as bench_command
from common.commands import check as check_command
from common.commands import prune as prune_command
from common.errors import UserError
from common.paths import ROOT
from common.solutions import Solution
from common.spec import TIERS, TIMED
from common.tools import compute_sanitizer as sanitizing

if TYPE_CHECKING:
    from rich.progress import Progress

    from common.board.table import About
    from common.records.runs import Results
    from common.spec import Case
    from common.tuning.points import TuningTask
    from common.verdicts import Verdict

NEEDED = ("torch", "triton", "numpy", "msgspec")
SANITIZED = 12
"""Smoke cases of each op under NVIDIA's tools, unless told: they slow a kernel fifty-fold."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command; a fault of the user's is one line and exit code 2."""
    options = _parser().parse_args(arguments)
    try:
        sys.exit(options.command(options))
    except UserError as fault:
        sys.exit(_complain(str(fault)))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        hint = f"python -m pip install {package}, or leave it to nox"
        sys.exit(_complain(f"the package {package} is missing: {hint}"))
    except OSError as error:
        sys.exit(_complain(f"{error.filename or 'a file'}: {error.strerror or error}"))
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        line = "a case needs more memory than the GPU has free: choose others with --op or --only"
        sys.exit(_complain(f"{line}; what was recorded is kept"))
    except KeyboardInterrupt:
        _complain("interrupted; what was recorded is kept, and the same command goes on from it")
        sys.exit(130)


def _complain(line: str) -> int:
    print(f"study: {line}", file=sys.stderr)
    return 2


# --- commands -------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    """List every solution and peer with its note."""
    chosen = _chosen(options)
    width = max(len(solution.name) for solution in chosen)
    for solution in chosen:
        print(f"{solution.name:{width}}  {solution.note}")
    for peer, reason in solutions.peers()[1].items():
        print(f"{peer:{width}}  absent: {reason}")
    return 0


def grade(options: argparse.Namespace) -> int:
    """Grade solutions, one line for each with each case; exit 0 only if no contributor's failed."""
    chosen = _chosen(options)
    target = options.json and _writable(options.json)
    device = _device(options)
    from common.grading.sweep import Sweep, repeats, tier_cases

    verdicts: list[Verdict] = []
    again = repeats(options.tier, device)
    with Sweep(device, quiet=not options.verbose, overlap=True) as sweep:
        for op, cases in tier_cases(chosen, options.tier, device, options.sample):
            for _, _, _, graded in sweep.grade(op, cases, chosen, repeats=again):
                print(_one_line(*graded.values()), flush=True)
                verdicts += graded.values()
    if target:
        rows = [dataclasses.asdict(verdict) for verdict in verdicts]
        target.write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n")
    peers = {solution.name for solution in chosen if solution.peer}
    return int(any(not v.fine for v in verdicts if v.solution not in peers))


def _one_line(forward: Verdict, backward: Verdict) -> str:
    words = [f"{forward.solution:28} {forward.case:44}"]
    for verdict in (forward, backward):
        error = "" if verdict.error is None else f" {verdict.error:.2f}"
        words.append(f"{verdict.verdict}{error}")
    reasons = dict.fromkeys(v.reason for v in (forward, backward) if v.reason)
    return "  ".join([*words, *reasons])


def profile(options: argparse.Namespace) -> int:
    """Say for each of a folder's board cases what binds it: memory, arithmetic or launching."""
    options.only = _one_of(options.handle, options.only, "HANDLE")
    chosen = _chosen(options)
    device = _device(options)
    from common.commands.profile import profile

    profile(chosen, device, options.verbose)
    return 0


def sanitize(options: argparse.Namespace) -> int:
    """Run sanitizers over smoke cases: NVIDIA's on a GPU, or anywhere that of triton-viz."""
    chosen = solutions.select(solutions.discover(), options.op, options.only)
    device, sample = _device(options), options.sample
    if options.tool != sanitizing.SYMBOLIC:
        if device != "cuda":
            raise UserError(f"sanitize needs a GPU, but for --tool {sanitizing.SYMBOLIC}")
        sample = sample or SANITIZED
    from common.grading.sweep import tier_cases

    cases = tier_cases(chosen, "smoke", device, sample)
    tools = [options.tool] if options.tool else sanitizing.NVIDIA
    return int(not sanitizing.sanitize(chosen, cases, tools, options.verbose))


def leaderboard(options: argparse.Namespace) -> int:
    """Show the board from the records; write LEADERBOARD.md, the README's board and the plots."""
    from common.board import markdown, terminal
    from common.records import runs

    if options.op or options.only:
        solutions.select(solutions.everyone(installed=False), options.op, options.only)
    boards = runs.read_all()
    if not boards:
        raise UserError("nothing is recorded yet: run bench first (nox -s bench leaderboard)")
    about = _about()
    if options.compare:
        return _compare([results.of_op(options.op) for results in boards], about, options.only)
    # what was not timed stays on the machine that it was graded on
    if timed := [results for results in boards if results.timed]:
        (ROOT / "LEADERBOARD.md").write_text(markdown.leaderboard(timed, about))
        markdown.insert(ROOT / "README.md", markdown.readme_board(timed, about))
        _draw_plots(timed, about)
    console = terminal.console()
    for results in boards:
        terminal.show(results.of_op(options.op), about, console, options.only or "")
    return 0


def _compare(boards: Sequence[Results], about: dict[str, About], only: str | None) -> int:
    """Show how far the latest two runs agree; nothing is written."""
    from common.board import comparison, terminal

    timed = [(results, comparison.compare(results, about)) for results in boards if results.timed]
    if not any(found for _, found in timed):
        raise UserError("no op was measured in two finished runs on one GPU: run bench again there")
    console = terminal.console()
    for results, found in timed:
        if found:
            terminal.show_comparisons(results, found, console, only or "")
    return 0


def _draw_plots(timed: Sequence[Results], about: dict[str, About]) -> None:
    from common.board.plots import drawing, sweeps

    for results in timed:
        if drawn := sweeps.plots(sweeps.rows_of(results, about)):
            folder = paths.PLOTS / results.path.name
            drawing.draw(drawn, results.runs[-1].device_name, folder)


def new(options: argparse.Namespace) -> int:
    """Write contributors/HANDLE/OP.py from the template: a naive kernel that passes."""
    from common.commands.new import write

    handle = _one_of(options.handle, options.only, "HANDLE")
    written = write(handle, _one_of(options.new_op, options.op, "OP"), options.tuned)
    names = " and ".join(str(path.relative_to(ROOT)) for path in written)
    print(f"wrote {names}; next: nox -s check -- {handle}")
    return 0


def tune(options: argparse.Namespace) -> int:
    """Search the configurations that a folder declares, and write the best where it reads them."""
    options.only = _one_of(options.handle, options.only, "HANDLE")
    chosen = solutions.select(solutions.discover(), options.op, options.only)
    device = _device(options)
    if device == "cpu":
        raise UserError("tune needs a GPU: without one nothing is timed")
    from common.measure import machine
    from common.tuning import search as tuning

    with _progress() as progress:
        cases = progress.add_task("tune", total=None)
        configs = progress.add_task("", total=None)

        def at_case(solution: Solution, case: Case, number: int, of: int) -> None:
            text = f"{solution.name} {case.name}"
            progress.update(cases, completed=number, total=of, description=text)

        def at_config(spot: TuningTask, done: int, of: int) -> None:
            progress.update(configs, completed=done, total=of, description=str(spot.shape))

        def say(line: str) -> None:
            progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

        watcher = tuning.Watcher(at_case, at_config, say)
        found = tuning.tune(chosen, device, watcher, quiet=not options.verbose)
    if found is None:
        return 0
    for one in found:
        print(*one.lines(), sep="\n")
    file = f"{machine.results_folder(device)}.json"
    print(f"study: what is best is in contributors/{chosen[0].handle}/configs/{file}")
    return 0


# --- parts of them --------------------------------------------------------------------------------


def _chosen(options: argparse.Namespace) -> list[Solution]:
    return solutions.select(solutions.everyone(), options.op, options.only)


def _one_of(positional: str | None, option: str | None, name: str) -> str:
    """What stands at its place or behind its option, which say the same."""
    if positional and option and positional != option:
        raise UserError(f"{name} is given twice: {positional} and {option}")
    if not (given := positional or option):
        raise UserError(f"{name} is missing")
    return given


def _writable(path: Path) -> Path:
    """Told before the work whose result would be lost."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: its folder is not there, or it is one")
    return path


def _progress() -> Progress:
    """Bars on stderr where that is a terminal; what its console prints stands above them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    text, count = TextColumn("{task.description}"), MofNCompleteColumn()
    console = Console(stderr=True)
    columns = (text, BarColumn(), count, TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _about() -> dict[str, About]:
    """Peers too whose library is not here: their rows were measured where it was."""
    from common.board.table import About

    return {s.name: About(s.note, s.digest) for s in solutions.everyone(installed=False)}


def _device(options: argparse.Namespace) -> str:
    """`cuda` where a GPU is, or as asked; a UserError where what is needed is not there."""
    for package in NEEDED:
        if not importlib.util.find_spec(package):
            raise ModuleNotFoundError(name=package)
    # torch would warn at exit of memory that killed workers had mapped
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch

    available = torch.cuda.is_available()
    if options.device == "cuda" and not available:
        raise UserError("there is no GPU that torch can use: leave --device out, or give cpu")
    return options.device or ("cuda" if available else "cpu")


# --- arguments ------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="study", description="Grade, time and rank the study's solutions.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    moved = {m.run: m for m in (bench_command, check_command, prune_command)}
    for command, add_arguments in COMMANDS.items():
        help = command.__doc__ or ""
        place = moved.get(command)
        name = place.__name__.rpartition(".")[2] if place else command.__name__.strip("_")
        added = commands.add_parser(name, help=help, description=help)
        added.set_defaults(command=command)
        added.add_argument("--op", help="one op alone")
        added.add_argument("--only", metavar="HANDLE[/FILE]", help="one contributor or file alone")
        add_arguments(added)
    return parser


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def _running_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU where one is")
    parser.add_argument(
        "--verbose", action="store_true", help="show what solutions print, and every failure"
    )


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    _running_arguments(parser)
    parser.add_argument("--tier", choices=TIMED, default="board", help="default: board")


def _leaderboard_arguments(parser: argparse.ArgumentParser) -> None:
    _bench_arguments(parser)
    parser.add_argument(
        "--compare", action="store_true", help="the two latest runs side by side; writes nothing"
    )


def _grade_arguments(parser: argparse.ArgumentParser) -> None:
    _running_arguments(parser)
    parser.add_argument("--tier", choices=TIERS, default="smoke")
    parser.add_argument("--sample", type=_count, metavar="N", help="N of the cases, at random")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts there")


def _sanitize_arguments(parser: argparse.ArgumentParser) -> None:
    _running_arguments(parser)
    tools = (*sanitizing.NVIDIA, sanitizing.SYMBOLIC)
    parser.add_argument("--tool", choices=tools, help="default: NVIDIA's three")
    parser.add_argument("--sample", type=_count, metavar="N", help="N of the cases, at random")


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    _running_arguments(parser)
    parser.add_argument("handle", nargs="?", metavar="HANDLE[/FILE]")


def _new_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("handle", nargs="?", metavar="HANDLE")
    parser.add_argument("new_op", nargs="?", metavar="OP")
    parser.add_argument(
        "--tuned", action="store_true", help="with configs.py, which reads what tune found"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


COMMANDS: dict[Any, Any] = {
    _list: _no_arguments,
    grade: _grade_arguments,
    check_command.run: check_command.add_arguments,
    profile: _check_arguments,
    bench_command.run: bench_command.add_arguments,
    prune_command.run: prune_command.add_arguments,
    leaderboard: _leaderboard_arguments,
    new: _new_arguments,
    tune: _check_arguments,
    sanitize: _sanitize_arguments,
}
