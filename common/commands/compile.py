"""`study compile`: compile the kernels of the board's cases, also for GPUs of other machines."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from common.commands import options as shared
from common.commands.progress import Progress
from common.errors import UserError
from common.solutions import Solution, is_among

if TYPE_CHECKING:
    from common.spec import Case
    from common.tools.compilation import Compiled

STAGES = ("ttir", "ttgir", "llir", "ptx", "sass", "amdgcn")
FIGURES = ("registers", "local", "shared", "warps", "instructions")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the targets, the case and the output."""
    add = parser.add_argument
    add("--target", action="append", help="sm_80, gfx942, ...; may be repeated")
    add("--case", help="only this case; default: every case of the board")
    add("--show", nargs=2, metavar=("STAGE", "KERNEL"), help=f"print {', '.join(STAGES)}")
    add("--diff", nargs=2, metavar="HANDLE[/FILE]", help="with --show: two solutions side by side")
    add("--json", type=Path, metavar="FILE", help="write the figures to this file")
    verbose = "show each form of a kernel for each target, and the solutions' own output"
    add("--verbose", action="store_true", help=verbose)


def run(options: argparse.Namespace) -> int:
    """Compile the board's kernels for several GPUs; print registers, shared memory and the like."""
    from common.tools.compilation import TARGETS, compiled

    targets = options.target or list(TARGETS)
    if unknown := [target for target in targets if target not in TARGETS]:
        raise UserError(f"no target {unknown[0]}: there are {', '.join(TARGETS)}")
    _check_shown(options)
    written = options.json and shared.writable(options.json)
    todo = _todo(shared.contributors(options), options.case)
    found: list[Compiled] = []
    with (
        closing(compiled(todo, targets, quiet=not options.verbose)) as parts,
        Progress("solutions and targets", len(todo) * len(targets)) as steps,
    ):
        for kernels in parts:
            found += kernels
            steps.done(f"{kernels[0].solution} {kernels[0].target}" if kernels else "no kernel")
    if options.show:
        stage, kernel = options.show
        _print_stage(stage, kernel, found, options.diff)
    else:
        _print_table(table(found, options.verbose))
    if written:
        rows = (dataclasses.asdict(line) for line in found)
        shown = [{name: row[name] for name in row if name != "files"} for row in rows]
        written.write_text(json.dumps(shown, indent=1) + "\n")
    return 0


def _check_shown(options: argparse.Namespace) -> None:
    """Check `--show` and `--diff`, and set `--only` to the two solutions of `--diff`.

    Raises:
        UserError: `--show` names no stage, or `--diff` is given without `--show` or with `--only`.
    """
    stages = f"the stages are {', '.join(STAGES)}"
    if options.diff and not options.show:
        raise UserError(f"--diff needs --show STAGE KERNEL; {stages}")
    if options.show and options.show[0] not in STAGES:
        raise UserError(f"no stage {options.show[0]}: {stages}")
    if options.diff and options.only:
        raise UserError("--diff names its two solutions itself: leave --only out")
    options.only = ",".join(options.diff) if options.diff else options.only


def _todo(chosen: Sequence[Solution], only: str | None) -> Mapping[Solution, Sequence[Case]]:
    """Return each solution with the board's cases of its op, at their true shapes."""
    from common import ops

    of_op = {
        op.name: [case for case in op.cases("board") if only in (None, case.name)]
        for op in ops.valid(solution.op for solution in chosen)
    }
    if todo := {solution: of_op[solution.op] for solution in chosen if of_op.get(solution.op)}:
        return todo
    raise UserError(f"no case of the board is called {only}")


# --- the table ------------------------------------------------------------------------------------


def table(found: Iterable[Compiled], verbose: bool = False) -> list[dict[str, str]]:
    """Return a row for each kernel and direction, and for each reason why calls ended.

    A cell is the range over all cases and targets; with `verbose` each target and each form, which
    is one set of figures, has a row. The calls that ended are the first, then the kernels with the
    most local memory, which holds spilled registers.
    """
    groups: dict[tuple[str, ...], list[Compiled]] = defaultdict(list)
    for line in found:
        name = f"{line.solution}: {line.kernel or f'{line.verdict}: {line.reason}'}"
        form = (line.target, str(line.figures)) if verbose else ("", "")
        groups[name, line.direction, *form].append(line)

    def local(lines: Iterable[Compiled]) -> float:
        return max(line.figures.get("local", float("inf")) for line in lines)

    return [
        {
            "kernel": name,
            "first in": direction,
            **({"target": target} if verbose else {}),
            "cases": str(len({line.case for line in lines})),
            **{figure: _range(lines, figure) for figure in FIGURES},
        }
        for (name, direction, target, _), lines in sorted(
            groups.items(), key=lambda group: -local(group[1])
        )
    ]


def _range(lines: Iterable[Compiled], figure: str) -> str:
    """Return the least and the greatest value of a figure; empty for a call that ended."""
    values = sorted(line.figures[figure] for line in lines if line.figures)
    return "–".join(dict.fromkeys(f"{value:,}" for value in (*values[:1], *values[-1:])))


def _print_table(rows: Sequence[Mapping[str, str]]) -> None:
    """Print the rows; calls that ended are red, and kernels with local memory yellow."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from common.board import terminal

    drawing = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0] if rows else ():
        text = name in ("kernel", "first in", "target")
        drawing.add_column(name, justify="left" if text else "right", overflow="fold")
    for row in rows:
        style = {"": "red", "0": ""}.get(row["local"], "yellow")
        drawing.add_row(*map(Text, row.values()), style=style)
    terminal.console().print(drawing)


# --- stages ---------------------------------------------------------------------------------------


def _print_stage(
    stage: str, kernel: str, found: Sequence[Compiled], handles: Sequence[str] | None
) -> None:
    """Print a stage of a kernel, or the diff of two solutions' kernels."""
    if not handles:
        print(shown(stage, kernel, found))
        return
    both = ([line for line in found if is_among(line.solution, handle)] for handle in handles)
    first, second = (shown(stage, kernel, lines).splitlines() for lines in both)
    print("\n".join(difflib.unified_diff(first, second, handles[0], handles[1], lineterm="")))


def shown(stage: str, kernel: str, found: Iterable[Compiled]) -> str:
    """Return a stage of the first kernel that has it, by a part of the kernel's name.

    Raises:
        UserError: There is no such kernel.
    """
    from common.tools.compilation import assembly

    suffix = "cubin" if stage == "sass" else stage
    for line in found:
        if kernel in line.kernel and suffix in line.files:
            return assembly(line.files) if stage == "sass" else Path(line.files[stage]).read_text()
    raise UserError(f"no kernel {kernel} with {stage} is compiled here")
