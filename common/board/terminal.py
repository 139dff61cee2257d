"""Boards in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from common.board import modelled, moves, table, work
from common.board.comparison import Comparison
from common.board.devices import Device, sections, side_by_side
from common.board.drawing import draw, fitted
from common.board.model import DEFAULT, GPUS, Gpu
from common.board.modelled import Pair
from common.board.ranking import Track
from common.board.table import About, Table
from common.records.runs import Results

PIPE_WIDTH = 160
WHOLE_NOTES = 200
"""From this width on no note is cut."""


def console() -> Console:
    """Return a console as wide as the terminal; elsewhere, wide enough for a row."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPE_WIDTH)


MODELLED = (
    "The boards below rank by the time that a model gives for {} from the counted work of each case"
    " at its true shape; docs/model.md says how far to trust it."
)


def show(
    results: Results,
    about: Mapping[str, About],
    console: Console,
    only: str = "",
    gpu: Gpu = GPUS[DEFAULT],
) -> None:
    """Print the device and the versions, then a table for each track.

    Where nothing was timed, the tables rank by the time modelled for `gpu`. The rows of the handle
    or solution `only` stand out.
    """
    run = results.runs[-1]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    console.print(Text.assemble((f"\n{run.device_name}", "bold"), (f"  {versions}", "dim")))
    label = ""
    if not results.timed:
        console.print(
            "Nothing was timed: there is no GPU. Each case ran as a small twin of itself in"
            " Triton's interpreter, which says which solutions are right and what they cover, not"
            " which are fast."
        )
    if not results.timed and results.counted:
        results, label = modelled.board(results, gpu), f", modelled for {gpu.name}"
        console.print(MODELLED.format(gpu.name))
    for section in sections(results, about):
        for track in section.tracks:
            show_track(track, about, results.timed or bool(label), console, only, label)
        for line in section.left_out:
            console.print(Text(f"{section.op}: {line}", style="dim"))
    if label:
        for drawn in work.tables(modelled.latest([results]).values(), about):
            _print(console, drawn, only)
    for peer, reason in results.absent.items():
        console.print(Text(f"absent: {peer}, {reason}", style="dim"))


def show_track(
    track: Track,
    about: Mapping[str, About],
    timed: bool,
    console: Console,
    only: str = "",
    label: str = "",
) -> None:
    """Print the track's ranking; the rows of the handle or solution `only` stand out.

    `label` follows the title.
    """
    notes = console.width >= WHOLE_NOTES
    drawn = table.ranking(track, about, timed, whole=False, whole_notes=notes)
    if label:
        # a modelled score has no interval
        rows = tuple(tuple(cell.replace(" ± 0.00", "") for cell in row) for row in drawn.rows)
        drawn = replace(drawn, title=drawn.title + label, rows=rows)
    _print(console, drawn, only)


def show_modelled(pairs: Sequence[Pair], gpu: Gpu, console: Console, only: str = "") -> None:
    """Print modelled times beside measured ones, a table for each op, track and direction."""
    for drawn in modelled.tables(pairs, gpu):
        _print(console, drawn, only)


def show_comparisons(
    results: Results, comparisons: Sequence[Comparison], console: Console, only: str = ""
) -> None:
    """Print for each op what changed between its two runs, then a table for each track.

    A last line names the ops that only one finished run has measured.
    """
    console.print(Text(f"\n{results.runs[-1].device_name}", style="bold"))
    for comparison in sorted(comparisons, key=lambda each: table.place(each.op)):
        runs = f"{comparison.op}: run {comparison.earlier.run}, then {comparison.later.run}"
        changed = f"; between them changed {', '.join(comparison.changed)}"
        console.print(Text(runs + changed * bool(comparison.changed), style="dim"))
        for both in comparison.tracks:
            _print(console, moves.table_of(both), only)
    once = {row.op for row in results.latest()} - {comparison.op for comparison in comparisons}
    if once:
        names = ", ".join(sorted(once, key=table.place))
        console.print(f"not in two finished runs: {names}", style="dim")


def show_devices(
    devices: Sequence[Device], about: Mapping[str, About], console: Console, only: str = ""
) -> None:
    """Print each solution's speed on every device, a table for each track."""
    for drawn in side_by_side(devices, about):
        _print(console, drawn, only)


def _print(console: Console, drawn: Table, only: str) -> None:
    """Print as much of the table as the console is wide, below an empty line."""
    shown = fitted(drawn, console.width)
    console.print()
    console.print(draw(shown, only, console.width >= WHOLE_NOTES))
    left_out = [name for name in drawn.header if name not in shown.header]
    if left_out:
        console.print(Text(f"too narrow for: {', '.join(left_out)}", style="dim"))
