"""The command line, `study`: each command is one function, its docstring the help."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from common import records, solutions
from common.solutions import CONTRIBUTORS, ROOT, Fault, Solution

if TYPE_CHECKING:
    from common.board.table import About
    from common.grade import Verdict
    from common.records import Record, Results

HANDLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command; a fault of the user's is one line and exit code 2."""
    options = _parser().parse_args(arguments)
    try:
        sys.exit(options.command(options))
    except Fault as fault:
        sys.exit(_complain(str(fault)))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        hint = f"python -m pip install {package}, or leave it to nox"
        sys.exit(_complain(f"the package {package} is missing: {hint}"))
    except KeyboardInterrupt:
        print(
            "study: interrupted; what was recorded is kept, bench goes on from it", file=sys.stderr
        )
        sys.exit(130)


def _complain(line: str) -> int:
    print(f"study: {line}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="study", description="Grade, time and rank the study's solutions.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = _Parser(add_help=False)
    common.add_argument("--op", help="one op alone")
    common.add_argument("--only", metavar="HANDLE[/FILE]", help="one contributor or file alone")
    common.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU where one is")
    common.add_argument("--verbose", action="store_true", help="show what solutions print")

    def add(command: Any) -> argparse.ArgumentParser:
        help = command.__doc__
        added = commands.add_parser(
            command.__name__.strip("_"),
            parents=[common],
            help=help.splitlines()[0],
            description=help,
        )
        added.set_defaults(command=command)
        return added

    add(_list)
    grading = add(grade)
    grading.add_argument("--tier", choices=("smoke", "matrix", "board"), default="smoke")
    grading.add_argument("--sample", type=_count, metavar="N", help="N of the cases, evenly spread")
    grading.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts there")
    add(check).add_argument("handle", metavar="HANDLE[/FILE]")
    add(bench)
    add(leaderboard)
    newcomer = add(new)
    newcomer.add_argument("handle", metavar="HANDLE")
    newcomer.add_argument("new_op", metavar="OP")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


# --- commands -------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    """List every solution and peer with its note."""
    present, absent = solutions.peers()
    chosen = solutions.select([*solutions.discover(), *present], options.op, options.only)
    width = max(len(solution.name) for solution in chosen)
    for solution in chosen:
        print(f"{solution.name:{width}}  {solution.note}")
    for peer, reason in absent.items():
        print(f"{peer:{width}}  absent: {reason}")
    return 0


def grade(options: argparse.Namespace) -> int:
    """Grade solutions, one line for each with each case; exit 0 only if no contributor's failed."""
    from common.sweep import Sweep

    chosen = _chosen(options)
    verdicts: list[Verdict] = []
    with Sweep(_device(options), quiet=not options.verbose) as sweep:
        for solution, graded in _graded(sweep, chosen, options.tier, options.sample):
            print(_one_line(graded), flush=True)
            verdicts += graded
    if options.json:
        rows = [dataclasses.asdict(verdict) for verdict in verdicts]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    peers = {solution.name for solution in chosen if solution.peer}
    return int(any(not v.fine for v in verdicts if v.solution not in peers))


def check(options: argparse.Namespace) -> int:
    """Grade and measure one folder: what is wrong with it and where it would stand on the board."""
    from common import bench as benching
    from common.board import terminal
    from common.sweep import Sweep

    options.only = options.handle
    chosen = solutions.select(solutions.discover(), options.op, options.only)
    device = _device(options)
    with Sweep(device, quiet=not options.verbose) as sweep:
        failed = _report(_graded(sweep, chosen, "smoke", None))
        digests = {s: (s.digest, benching.harness_digest(s.op)) for s in chosen}
        measured = benching.measure(sweep, chosen, "check", digests)
        rows = [row for several in measured for row in several]
    earlier = records.read(records.RESULTS / benching.results_file(device))
    failed |= any(row.verdict not in ("PASSED", "UNSUPPORTED") for row in rows)
    _standing(rows, earlier, device, chosen, terminal.console())
    return int(failed)


def bench(options: argparse.Namespace) -> int:
    """Grade and time every solution and peer on the board's cases, and record each row."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from common import bench as benching
    from common import ops

    chosen, absent = _chosen(options), solutions.peers()[1]
    device = _device(options)
    counts = {op: len(list(ops.load(op).board(device))) for op in {s.op for s in chosen}}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    selection = f"op={options.op or 'all'} only={options.only or 'all'}"
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("bench", total=2 * sum(counts[s.op] for s in chosen))

        def seen(row: Record) -> None:
            progress.update(task, advance=1, description=f"{row.solution} {row.case}")
            if row.verdict not in ("PASSED", "UNSUPPORTED"):
                progress.console.print(f"{row.solution} {row.case} {row.direction}:", row.verdict)

        kept = benching.bench(chosen, device, selection, absent, seen)
    if kept:
        print(f"study: went on with an interrupted run, {kept} of its cases were kept")
    print(f"study: recorded in {records.RESULTS.name}/{benching.results_file(device)}")
    return 0


def leaderboard(options: argparse.Namespace) -> int:
    """Show the board from the records; LEADERBOARD.md and the README's board where a GPU timed it."""
    from common.board import markdown, terminal

    about = _about()
    if options.op or options.only:
        solutions.select(_everyone(), options.op, options.only)
    boards = records.read_all()
    if not boards:
        raise Fault("nothing is recorded yet: run bench first (nox -s bench leaderboard)")
    timed = [results for results in boards if results.timed]
    if timed:
        (ROOT / "LEADERBOARD.md").write_text(markdown.leaderboard(timed, about))
        markdown.insert(ROOT / "README.md", markdown.readme_board(timed, about))
    console = terminal.console()
    for results in boards:
        terminal.show(_of_op(results, options.op), about, console)
    return 0


def new(options: argparse.Namespace) -> int:
    """Write contributors/HANDLE/OP.py from the template: a naive kernel that passes."""
    handle, op = options.handle, options.new_op
    solutions.select(_everyone(), op)
    if not HANDLE.fullmatch(handle):
        raise Fault(f"{handle!r} is no handle: letters, digits, - and _ make one")
    template, folder = CONTRIBUTORS / "_template", CONTRIBUTORS / handle
    if not (template / f"{op}.py").exists():
        raise Fault(f"there is no template for {op}: copy another contributor's {op}.py")
    target, readme = folder / f"{op}.py", folder / "README.md"
    if target.exists():
        raise Fault(f"{target.relative_to(ROOT)} is there already and was left as it is")
    folder.mkdir(exist_ok=True)
    shutil.copyfile(template / f"{op}.py", target)
    if not readme.exists():
        text = (template / "README.md").read_text()
        readme.write_text(text.replace("{handle}", handle).replace("{op}", op))
    print(f"wrote {target.relative_to(ROOT)}; next: nox -s check -- {handle}")
    return 0


# --- parts of them --------------------------------------------------------------------------------


def _everyone() -> list[Solution]:
    return [*solutions.discover(), *solutions.peers()[0]]


def _chosen(options: argparse.Namespace) -> list[Solution]:
    return solutions.select(_everyone(), options.op, options.only)


def _about() -> dict[str, About]:
    from common.board.table import About

    return {s.name: About(s.note, s.digest) for s in _everyone_written()}


def _everyone_written() -> list[Solution]:
    """Peers too whose library is not here: their rows were measured where it was."""
    return [*solutions.discover(), *solutions.discover(solutions.PEERS)]


def _of_op(results: Results, op: str | None) -> Results:
    rows = [row for row in results.rows if op in (None, row.op)]
    return dataclasses.replace(results, rows=rows)


def _device(options: argparse.Namespace) -> str:
    """`cuda` where a GPU is, or as asked; a Fault where what is needed is not there."""
    for package in ("torch", "triton", "numpy"):
        if not importlib.util.find_spec(package):
            raise ModuleNotFoundError(name=package)
    # torch warns at exit of memory that killed workers had mapped, which is as it should be
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch

    available = torch.cuda.is_available()
    if options.device == "cuda" and not available:
        raise Fault("there is no GPU that torch can use: leave --device out, or give cpu")
    return options.device or ("cuda" if available else "cpu")


def _graded(
    sweep: Any, chosen: Sequence[Solution], tier: Any, sample: int | None
) -> Iterator[tuple[Solution, list[Verdict]]]:
    from common import ops

    for name in sorted({solution.op for solution in chosen}):
        op = ops.load(name)
        cases = list(op.tier(tier, sweep.device))
        if sample:
            cases = cases[:: max(len(cases) // sample, 1)][:sample]
        for solution, _, _, verdicts in sweep.grade(op, cases, chosen):
            yield solution, list(verdicts.values())


def _one_line(graded: Iterable[Verdict]) -> str:
    forward, backward = graded
    words = [f"{forward.solution:28} {forward.case:44}"]
    for verdict in (forward, backward):
        error = "" if verdict.error is None else f" {verdict.error:.2f}"
        words.append(f"{verdict.verdict}{error}")
    reasons = dict.fromkeys(v.reason for v in (forward, backward) if v.reason)
    return "  ".join([*words, *reasons])


def _report(graded: Iterator[tuple[Solution, list[Verdict]]]) -> bool:
    """Print what failed, and how many of each verdict; whether anything failed."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for solution, verdicts in graded:
        for verdict in verdicts:
            counts[solution.name][verdict.verdict] += 1
            if not verdict.fine:
                print(f"{verdict.solution} {verdict.case} {verdict.direction}: {verdict.verdict}")
                print(f"    {verdict.reason}")
    for name, counted in counts.items():
        print(f"{name}: " + ", ".join(f"{n} {verdict}" for verdict, n in counted.most_common()))
    return any(set(counted) - {"PASSED", "UNSUPPORTED"} for counted in counts.values())


def _standing(
    rows: list[Record], earlier: Results, device: str, chosen: Sequence[Solution], console: Any
) -> None:
    """The board as it would be with these rows in it."""
    from common.board import terminal
    from common.board.ranking import rank

    about = _about()
    latest = {row.key: row for row in [*earlier.latest(), *rows] if row.solution in about}
    mine = {(row.op, row.track) for row in rows}
    if not earlier.rows:
        print("No board was measured on this device yet; nox -s bench leaderboard makes one.")
    if device == "cpu":
        print("Nothing was timed without a GPU: the board shows who covers what.")
    for track in rank(latest.values()):
        if (track.op, track.name) in mine:
            terminal.show_track(track, about, device != "cpu", console, chosen[0].handle)
