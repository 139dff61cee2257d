"""Boards in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as Drawing
from rich.text import Text

from common.board import moves, table
from common.board.comparison import Comparison
from common.board.devices import Device, side_by_side
from common.board.ranking import Track
from common.board.sections import sections
from common.board.table import About, Table
from common.records.runs import Results

PIPE_WIDTH = 160


def console() -> Console:
    """Return a console as wide as the terminal; elsewhere, wide enough for a row."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPE_WIDTH)


def show(results: Results, about: Mapping[str, About], console: Console, only: str = "") -> None:
    """Print the device and the versions, then a table for each track.

    The rows of the handle or solution `only` stand out.
    """
    run = results.runs[-1]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    console.print(Text(f"\n{run.device_name}", style="bold") + Text(f"  {versions}", style="dim"))
    if not results.timed:
        console.print(
            "Nothing was timed: there is no GPU. Each case ran as a small twin of itself in"
            " Triton's interpreter,\nwhich says which solutions are right and what they cover, not"
            " which are fast."
        )
    for section in sections(results, about):
        for track in section.tracks:
            show_track(track, about, results.timed, console, only)
        for line in section.left_out:
            console.print(Text(f"{section.op}: {line}", style="dim"))
    for peer, reason in run.absent.items():
        console.print(Text(f"absent: {peer}, {reason}", style="dim"))


def show_track(
    track: Track, about: Mapping[str, About], timed: bool, console: Console, only: str = ""
) -> None:
    """Print the track's ranking; the rows of the handle or solution `only` stand out."""
    console.print(_draw(table.ranking(track, about, timed, whole=False), only))


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
            console.print(_draw(moves.table_of(both), only))
    once = {row.op for row in results.latest()} - {comparison.op for comparison in comparisons}
    if once:
        names = ", ".join(sorted(once, key=table.place))
        console.print(f"not in two finished runs: {names}", style="dim")


def show_devices(
    devices: Sequence[Device], about: Mapping[str, About], console: Console, only: str = ""
) -> None:
    """Print each solution's speed on every device, a table for each track."""
    for drawn in side_by_side(devices, about):
        console.print(_draw(drawn, only))


def _draw(drawn: Table, only: str) -> Drawing:
    drawing = Drawing(
        title=drawn.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        caption="\n".join(drawn.footnotes) or None,
        caption_justify="left",
        expand=True,
        pad_edge=False,
    )
    *_, last = drawn.header
    for name in drawn.header:
        drawing.add_column(
            name,
            justify="left" if name in ("solution", last) else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if name == last else None,
        )
    place = drawn.header.index("solution")
    for row in drawn.rows:
        drawing.add_row(*map(Text, row), style=_style(row[place], only))
    return drawing


def _style(name: str, only: str) -> str:
    mine = only and f"{name.strip('()' + table.MARKS)}/".startswith(f"{only}/")
    peer = name.startswith("(")
    return "bold green" if mine else "dim" * peer
