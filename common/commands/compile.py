"""`study compile`: compile the kernels of the board's cases, also for GPUs of other machines."""

from __future__ import annotations

import argparse
import difflib
import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common import paths
from common.commands import options as shared
from common.commands.progress import Progress
from common.errors import UserError
from common.solutions import Solution, is_among

if TYPE_CHECKING:
    from rich.table import Table

    from common.records.lines import Compiled
    from common.spec import Case

STAGES = ("ttir", "ttgir", "llir", "ptx", "sass", "amdgcn")
WIDE_CONSOLE = 120
"""The console's width from which the short table has all columns."""
WIDE_ONLY = ("warps", "instr", "wide", "mma")
"""The columns of the short table that a narrower console omits."""
Todo = Mapping[Solution, Sequence["Case"]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the targets, the case and the output."""
    parser.add_argument("--target", action="append", help="sm_80, gfx942, ...; may be repeated")
    parser.add_argument("--case", help="only this case; default: every case of the board")
    parser.add_argument(
        "--show", nargs=2, metavar=("STAGE", "KERNEL"), help=f"print {', '.join(STAGES)}"
    )
    parser.add_argument(
        "--diff", nargs=2, metavar="HANDLE[/FILE]", help="with --show: two solutions side by side"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show each form of a kernel for each target, and the solutions' own output",
    )


def run(options: argparse.Namespace) -> int:
    """Compile the board's kernels for several GPUs; print registers, shared memory and the like."""
    from common.tools.compilation import Compilation
    from common.tools.figures import PROCESSORS

    targets = options.target or list(PROCESSORS)
    if unknown := [target for target in targets if target not in PROCESSORS]:
        raise UserError(f"no target {unknown[0]}: there are {', '.join(PROCESSORS)}")
    _check_shown(options)
    written = options.json and shared.writable(options.json)
    todo = _todo(shared.contributors(options), options.case)
    with (
        Compilation(quiet=not options.verbose) as compilation,
        Progress("solutions and targets", len(todo) * len(targets)) as steps,
    ):
        compiled_kernels: list[Compiled] = []
        for lines in compilation.lines(todo, targets, shown=bool(options.show)):
            compiled_kernels += lines
            steps.done(f"{lines[0].solution} {lines[0].target}" if lines else "no kernel")
    if _is_complete(options):
        _write(compiled_kernels)
    if options.show:
        stage, kernel = options.show
        _print_stage(stage, kernel, compiled_kernels, options.diff)
    elif options.verbose:
        _print_tables(compiled_kernels)
    else:
        _print_summary(compiled_kernels)
    if written:
        written.write_text(
            json.dumps([_row(compiled) for compiled in compiled_kernels], indent=1) + "\n"
        )
    return 0


def _check_shown(options: argparse.Namespace) -> None:
    """Check `--show` and `--diff`, and set `--only` to the two solutions of `--diff`.

    Raises:
        UserError: `--show` names no stage, or `--diff` is given without `--show` or with `--only`.
    """
    stage = options.show and options.show[0]
    if stage and stage not in STAGES:
        raise UserError(f"no stage {stage}: there are {', '.join(STAGES)}")
    if options.diff and not stage:
        raise UserError(f"--diff needs --show STAGE KERNEL; the stages are {', '.join(STAGES)}")
    if options.diff and options.only:
        raise UserError("--diff names its two solutions itself: leave --only out")
    options.only = ",".join(options.diff) if options.diff else options.only


def _todo(chosen: Iterable[Solution], only: str | None) -> Todo:
    """Return each solution with the board's cases of its op, at their true shapes."""
    from common import ops

    chosen = list(chosen)
    cases = {
        op.name: list(op.cases("board")) for op in ops.valid(solution.op for solution in chosen)
    }
    selected = {
        solution: [case for case in cases.get(solution.op, ()) if only in (None, case.name)]
        for solution in chosen
    }
    todo = {solution: matching for solution, matching in selected.items() if matching}
    if not todo:
        raise UserError(f"no case of the board is called {only}")
    return todo


def _is_complete(options: argparse.Namespace) -> bool:
    """Return whether the options select all kernels and targets, without `--show`."""
    return not any((options.op, options.only, options.case, options.target, options.show))


def _write(compiled_kernels: Sequence[Compiled]) -> None:
    """Write the tables of docs/compile.md, and the record without the paths of this machine."""
    import msgspec

    from common.board import compiled
    from common.board.markdown import drawn, insert
    from common.measure import machine
    from common.records import writer
    from common.records.lines import SCHEMA, Run

    tables = [text for table in compiled.tables(compiled_kernels) for text in drawn(table)]
    insert(paths.ROOT / "docs" / "compile.md", "\n\n".join(tables), "compiled")
    run = Run(
        schema=SCHEMA, run=uuid.uuid4().hex[:12], device="cpu", device_name="none",
        versions=machine.versions(), absent={},
    )  # fmt: skip
    lines = [msgspec.structs.replace(line, files={}, direction=None) for line in compiled_kernels]
    writer.supersede(paths.RESULTS / "compiled", run, lines)


def _row(line: Compiled) -> dict[str, object]:
    """Return the line's fields of the JSON file."""
    excluded = {"schema", "run", "files", "direction"}
    names = [name for name in line.__struct_fields__ if name not in excluded]
    return {name: getattr(line, name) for name in names}


# --- tables ---------------------------------------------------------------------------------------


def _print_summary(compiled_kernels: Sequence[Compiled]) -> None:
    """Print the failures, then a table of kernels with the spilling kernels first."""
    from rich import box
    from rich.table import Table

    from common.board import compiled, terminal

    console = terminal.console()
    for line in compiled.ends(compiled_kernels, unsupported=False):
        console.print(line, style="red", markup=False, highlight=False)
    summary = compiled.summary(compiled_kernels)
    wide = console.width >= WIDE_CONSOLE
    shown = [name for name in summary.header if wide or name not in WIDE_ONLY]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in shown:
        text = name in ("kernel", "first in")
        table.add_column(name, justify="left" if text else "right", overflow="fold")
    for row in summary.rows:
        cells = dict(zip(summary.header, row, strict=True))
        table.add_row(
            *(cells[name] for name in shown),
            style="yellow" if cells["local"] not in ("0", "–") else "",
        )
    console.print(table)
    ranges = "From the least to the greatest over cases and targets; --verbose shows each."
    for line in (*compiled.ends(compiled_kernels, unsupported=True), ranges):
        console.print(line, style="dim", markup=False, highlight=False)


def _print_tables(compiled_kernels: Iterable[Compiled]) -> None:
    """Print a table for each kernel of each solution; cases with equal figures share a table."""
    from common.board import terminal

    console, before = terminal.console(), ""
    for (solution, kernel, _), cases in _alike(compiled_kernels).items():
        if solution != before:
            console.print(f"\n{solution}", style="bold")
        before = solution
        count = f"{len(cases)} cases, the first " if len(cases) > 1 else ""
        direction = f" ({cases[0][0].direction})" if kernel else ""
        title = f"\n{kernel or 'stopped'}{direction}: {count}{cases[0][0].case}"
        console.print(title, highlight=False)
        console.print(_table(cases[0]))


def _alike(
    compiled_kernels: Iterable[Compiled],
) -> dict[tuple[str, str, str], list[list[Compiled]]]:
    """Return the lines of each launch, one line per target, by solution, kernel and figures.

    If a case launches several forms of a kernel, each form is a launch of its own.
    """
    launches: dict[tuple[str, str, str, int], list[Compiled]] = defaultdict(list)
    forms: Counter[tuple[str, str, str, str]] = Counter()
    for line in compiled_kernels:
        key = line.solution, line.case, line.kernel, line.target
        launches[*key[:3], forms[key]].append(line)
        forms[key] += 1
    alike: dict[tuple[str, str, str], list[list[Compiled]]] = defaultdict(list)
    for (solution, _, kernel, _), lines in launches.items():
        figures = str([(line.target, line.figures, line.reason) for line in lines])
        alike[solution, kernel, figures].append(lines)
    return alike


def _table(lines: Iterable[Compiled]) -> Table:
    """Return the table of one kernel, a row for each target."""
    from rich import box
    from rich.table import Table

    from common.board.compiled import COLUMNS, cell

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("target")
    reasons = [line for line in lines if line.reason]
    for column in COLUMNS.values() if not reasons else ("verdict", "reason"):
        table.add_column(column, justify="left" if reasons else "right")
    for line in lines:
        cells = [cell(column, [line.figures.get(column)]) for column in COLUMNS]
        table.add_row(line.target, *((line.verdict, line.reason) if line.reason else cells))
    return table


# --- stages ---------------------------------------------------------------------------------------


def _print_stage(
    stage: str, kernel: str, compiled_kernels: Sequence[Compiled], handles: Sequence[str] | None
) -> None:
    """Print a stage of a kernel, or the diff of two solutions' kernels.

    Raises:
        UserError: There is no such kernel.
    """
    matching = [line for line in compiled_kernels if kernel in line.kernel and line.files]
    if not handles:
        print(_text(stage, kernel, matching))
        return
    by_handle = (
        [line for line in matching if is_among(line.solution, handle)] for handle in handles
    )
    first, second = (_text(stage, kernel, lines).splitlines() for lines in by_handle)
    print("\n".join(difflib.unified_diff(first, second, handles[0], handles[1], lineterm="")))


def _text(stage: str, kernel: str, lines: Sequence[Compiled]) -> str:
    from common.tools.figures import assembly

    for line in lines:
        if stage == "sass" and Path(line.files.get("cubin", "")).is_file():
            return assembly(line.files)
        if stage in line.files and Path(line.files[stage]).is_file():
            return Path(line.files[stage]).read_text()
    raise UserError(f"no kernel {kernel} with {stage} is compiled here")
