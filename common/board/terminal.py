"""Print boards in a terminal, without the least important columns where they do not fit."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Drawing
from rich.text import Text

from common.board import model, modelled, table
from common.board.columns import COLUMNS, PLACES, of_limit, ranking, summary
from common.board.devices import Device, about_solutions
from common.board.ranking import CLOCKS, DIRECTION, QUANTITIES, Cell, Track, median, op_order, rank
from common.board.table import Table, named
from common.peaks import PEAKS
from common.printable import plural, printable, translated
from common.records.lines import Counted, Record
from common.records.runs import Results
from common.solutions import is_among

OPTIONAL_COLUMNS = (
    *(column.name for column in sorted(COLUMNS, key=lambda column: column.spare) if column.spare),
    *PLACES[1:],
)
"""The columns that a narrow terminal omits, the most important first."""
GAP = 2
"""Blanks between two columns."""
HEADING_WIDTH = 11
"""A heading is wrapped if it is wider than this and wider than its column's cells."""
NOTE, MIN_NOTE_WIDTH = "note", 16
"""The column that is cut to what the others leave, and its least width."""
WRAPPED = ("op", "column", "kernel")
"""The columns whose cells take several lines on a narrow terminal."""
PIPE_WIDTH = 160


def console() -> Console:
    """Return a console as wide as the terminal, or `PIPE_WIDTH` wide in a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


UNTIMED = (
    "Nothing was timed: there is no GPU. Each case ran as a small twin of itself in Triton's"
    " interpreter, which says which solutions are right and what they cover, not which are fast."
)
MODELLED = (
    "The boards below rank by the time that a model gives for {} from the counted work of each case"
    " at its true shape. Its error is the ±, within which solutions share a place: docs/model.md."
)
PLACE = f"{{}} forward, modelled on an H200 (errs by some {model.ERROR['gpu']:.0%}): {{}}"
"""A solution with the words of `modelled_place`."""


def show_summary(device: Device, console: Console) -> None:
    """Print the first solutions of each column of the ops' main tracks, on one screen."""
    _introduce(device, console)
    show_tables([summary(device.mains)], console)
    if absent := ", ".join(device.results.absent):
        console.print(Text(f"absent: {absent} (nox -s peers)", style="dim"))
    console.print("all tables: nox -s leaderboard -- --op OP, or --only HANDLE", style="dim")


def _introduce(device: Device, console: Console) -> None:
    """Print the device and the versions, and what its places mean without a GPU."""
    console.print(Text.assemble((f"\n{device.name}", "bold"), (f"  {device.versions}", "dim")))
    if not device.results.timed:
        console.print(UNTIMED)
    if device.modelled:
        console.print(MODELLED.format(device.modelled))


def show(device: Device, console: Console, only: str = "", measured: Sequence[Record] = ()) -> None:
    """Print the device and the versions, then a table for each track.

    Without measured times, the tables rank by modelled times. With `only`, a handle or a solution,
    the tables have its rows and their neighbours, and below modelled ones stand its places among
    the `measured` rows of the modelled GPU. Print nothing if there is no row to show.
    """
    rows = [row for row in device.rows if not only or is_among(row.solution, only)]
    if not rows:
        return
    _introduce(device, console)
    label = f", modelled for {device.modelled}" if device.modelled else ""
    for op, tracks in device.ops.items():
        if only and not any(row.op == op for row in rows):
            continue
        for track in tracks:
            near = _near(track, only) if only else track
            if near.entries:
                drawn = ranking(near, short=True)
                show_tables([replace(drawn, title=drawn.title + label)], console, only)
        if only and all(is_among(row.solution, only) for row in device.rows if row.op == op):
            alone = f"only {only} is recorded here: there is nothing to rank it against"
            console.print(Text(alone, style="dim"))
    if device.modelled:
        every = device.results.latest_counts.values()
        counts = [counted for counted in every if not only or is_among(counted.solution, only)]
        show_tables(modelled.work_tables(counts, device.about), console, only)
        for solution in sorted({counted.solution for counted in counts} if only else ()):
            work = [counted for counted in counts if counted.solution == solution]
            if words := modelled_place(work, [row for row in measured if row.op == work[0].op]):
                console.print(Text(printable(translated(PLACE.format(solution, words)))))
    if not only:
        for peer, reason in device.results.absent.items():
            console.print(Text(f"absent: {peer}, {reason}", style="dim"))


def show_cases(device: Device, console: Console) -> None:
    """Print a table for each case, and who is fastest in it: all, and among the peers."""
    rows = [msgspec.structs.replace(row, track=row.case) for row in device.results.rows]
    device = replace(device, results=replace(device.results, rows=rows))
    show(device, console)
    for track in device.tracks.values():
        console.print()
        for cell in track.cells:
            place = f"{track.op} {cell[0]} {DIRECTION[cell[1]]}"
            console.print(Text(f"{place}: {_fastest(track, cell)}"))


def _fastest(track: Track, cell: Cell) -> str:
    """Return the fastest solution of a cell, and its lead over the best peer or contributor."""
    rows = [row for entry in track.entries if (row := track.row(entry, cell)) and row.gpu]
    if not rows:
        return "nothing was timed or modelled"
    first, *others = sorted(rows, key=median)
    line, digits = f"{named(first)} is fastest, {median(first):.1f} µs, {of_limit(first)}", 2
    if first.modelled:
        time, error = float(f"{median(first):.2g}") / 1000, model.ERROR[first.ranked_by]
        off = f"nothing was measured, {CLOCKS[first.ranked_by]} times are off by some {error:.0%}"
        line, digits = f"{named(first)} is modelled as fastest, about {time:g} ms ({off})", 1
    if second := next((row for row in others if row.peer != first.peer), None):
        best = "the best of the installed peers" if second.peer else "the best contributor"
        times = median(second) / median(first)
        line += f"; {best}, {named(second)}, takes {times:.{digits}f} times as long"
    return line


def _near(track: Track, only: str) -> Track:
    """Return the track with the entries that `only` selects and their neighbours."""
    selected = [i for i, entry in enumerate(track.entries) if is_among(entry.solution, only)]
    near = {i + offset for i in selected for offset in (-1, 0, 1)}
    return replace(track, entries=tuple(e for i, e in enumerate(track.entries) if i in near))


def show_comparisons(
    device: Device, compared: Mapping[str, tuple[str, Table]], console: Console, only: str = ""
) -> None:
    """Print the two runs and the ratios of each op, and which ops one finished run measured."""
    console.print(Text(f"\n{device.name}", style="bold"))
    for runs, ratios in compared.values():
        console.print(Text(runs, style="dim"))
        show_tables([ratios], console, only)
    if once := {row.op for row in device.results.latest()} - compared.keys():
        names = ", ".join(sorted(once, key=op_order))
        console.print(f"not in two runs: {names}", style="dim")


def show_tables(tables: Iterable[Table], console: Console, only: str = "") -> None:
    """Print an empty line and the columns that fit the console, for each table."""
    for complete in tables:
        shown = fitted(complete, console.width)
        console.print()
        drawing = draw(shown, only)
        drawing.expand &= console.is_terminal  # no trailing blanks in a pipe
        console.print(drawing)
        left_out = [name for name in complete.header if name not in shown.header]
        if left_out:
            console.print(Text(f"too narrow for: {'; '.join(left_out)}", style="dim"))


# --- a table's drawing ----------------------------------------------------------------------------


def fitted(complete: Table, width: int) -> Table:
    """Return the table without the optional columns that exceed the width.

    No number and no name of the other columns is cut.
    """
    header = complete.header
    widths = [
        MIN_NOTE_WIDTH if name == NOTE else _widest([*_heading(name, cells).split("\n"), *cells])
        for name, *cells in zip(header, *complete.rows, strict=True)
    ]
    shown = [i for i, name in enumerate(header) if name not in OPTIONAL_COLUMNS]
    for name in filter(header.__contains__, OPTIONAL_COLUMNS):
        more = sorted([*shown, header.index(name)])
        if sum(widths[i] + GAP for i in more) - GAP <= width:
            shown = more
        elif name in PLACES:  # no third without a second
            break
    header, *rows = (tuple(row[i] for i in shown) for row in (header, *complete.rows))
    return replace(complete, header=header, rows=tuple(rows))


def draw(drawn: Table, only: str = "") -> Drawing:
    """Return the drawing, whose notes may be cut; the rows that `only` selects are highlighted."""
    drawing = Drawing(
        title=drawn.title, title_justify="left", title_style="bold", caption_justify="left",
        caption="\n".join(map(printable, drawn.footnotes)) or None,
        box=box.SIMPLE_HEAD, expand=NOTE in drawn.header, pad_edge=False, show_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the box adds a blank
    )  # fmt: skip
    for name, *cells in zip(drawn.header, *drawn.rows, strict=True):
        drawing.add_column(
            _heading(name, cells),
            justify="left" if name in table.TEXT else "right",
            overflow="fold" if name in WRAPPED else "ellipsis",
            no_wrap=name not in (NOTE, *WRAPPED),
            ratio=1 if name == NOTE else None,
        )
    for row, owner in zip(drawn.rows, drawn.owners or [None] * len(drawn.rows), strict=True):
        texts = [Text(printable(cell), no_wrap=name not in WRAPPED)
                 for name, cell in zip(drawn.header, row, strict=True)]  # fmt: skip
        selected = owner and is_among(owner.solution, only)
        style = "bold green" if selected else "dim" if owner and owner.peer else ""
        drawing.add_row(*texts, style=style)
    return drawing


def _heading(name: str, cells: Sequence[str]) -> str:
    return "\n".join(textwrap.wrap(name, max(HEADING_WIDTH, _widest(cells))))


def _widest(cells: Sequence[str]) -> int:
    return max(map(cell_len, cells), default=0)


# --- the places of a folder -----------------------------------------------------------------------


def show_places(earlier: Results, rows: Sequence[Record], handle: str) -> None:
    """Print the tracks of the device's board with the folder's rows."""
    if not earlier.rows:
        print("There is no board of this device yet: nox -s bench leaderboard makes one.")
    about = about_solutions({row.solution for row in (*earlier.rows, *rows)})
    latest = {row.key: row for row in [*earlier.latest(), *rows] if row.solution in about}
    tracks = {(row.op, row.track) for row in rows}
    for track in rank(latest.values(), about):
        if (track.op, track.name) in tracks:
            show_tables([ranking(track, short=True)], console(), handle)


def modelled_place(work: Sequence[Counted], measured: Sequence[Record]) -> str:
    """Return the share of the limit, the place in the op's main track, and what is counted.

    It is of forward, by the GPU; "" for a solution that does not cover the track's cases.
    `measured` are the op's latest rows, those of its board's cases.
    """
    gpu, quantity = PEAKS[model.DEFAULT], QUANTITIES[0]
    if not (work and (tracks := rank(measured))):
        return ""
    entries = [each for each in tracks[0].placed(quantity) if each.solution != work[0].solution]
    cases = {row.case for each in entries for row in each.cells.values() if quantity.has(row)}
    own = [each for each in work if each.case in cases and each.direction == quantity.direction]
    shares = [modelled.share(each, gpu) for each in own]
    if not own or len(own) < len(cases) or not all(shares):
        return ""
    share = geometric_mean(shares)
    about = "~" * any(each.is_rough for each in own)
    better = sum(each.scores[quantity].main.value > share for each in entries)
    launches = plural(max(len(each.launches) for each in own), "kernel launch", "es")
    operators = plural(max(len(each.operators) for each in own), "torch operator")
    fetched = geometric_mean(max(each.read_again, 1.0) for each in own)
    return (
        f"{about}{share:.2f} of the limit, place {about}{better + 1} of {len(entries) + 1} in"
        f" {tracks[0].name}; fetches {about}{fetched:.2f} times what it reads; {launches}"
        f" and {operators} a call"
    )


def conclusion(rows: Sequence[Record]) -> Iterator[str]:
    """Yield the tracks in which solutions have no place, and the next step; no row has failed."""
    lacking, ranked = defaultdict[str, list[str]](list), False
    for track in rank(rows):
        for entry in track.entries:
            ranked |= not entry.missing
            if entry.missing:
                cases, directions = map(set, zip(*entry.missing, strict=True))
                of = plural(len({case for case, _ in track.cells}))
                name = track.name + " with backward" * ("forward" not in directions)
                lacking[entry.solution].append(f"{name} (lacks {len(cases)} of {of})")
    for solution, names in lacking.items():
        yield f"{solution} has no place in {', '.join(names)}"
    handle = rows[0].solution.partition("/")[0]
    unranked = f"No track ranks {handle} with backward, although all that is answered is right."
    yield f"Next: nox -s bench leaderboard -- --only {handle}" if ranked else unranked
