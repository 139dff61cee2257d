"""`study leaderboard`: draw the board from the records."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from common import paths, solutions
from common.board import columns, model
from common.board.comparison import compare
from common.board.devices import Device, about_solutions, ranked, tuned_on
from common.commands import bench
from common.errors import UserError
from common.printable import complain
from common.processes import require
from common.records import runs
from common.records.lines import Record

READMES = {"README.md": ("op", "signature"), "README.ko.md": ("연산", "시그니처")}
"""The READMEs, with the heading of their list of ops."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `bench`'s options, since nox passes the same to both commands, and the output options."""
    bench.add_arguments(parser)
    beside = parser.add_mutually_exclusive_group()
    compare = "the latest two runs side by side; writes nothing"
    beside.add_argument("--compare", action="store_true", help=compare)
    listed = "print the boards as a list of objects; writes nothing"
    beside.add_argument("--json", action="store_true", help=listed)


def run(options: argparse.Namespace) -> int:
    """Show the board from the records; write LEADERBOARD.md, the README's board, plots and page."""
    if not options.json:
        require(["rich"])  # before the records are read
    if options.op or options.only:
        solutions.select(solutions.everyone(installed=False), options.op, options.only)
    if not (recorded := runs.read_all()):
        raise UserError("nothing is recorded yet: run bench first (nox -s bench leaderboard)")
    about, only = about_solutions(), options.only or ""
    of_op = [results.of_op(options.op) for results in recorded]
    measured = [Device(results, about) for results in of_op]
    if options.json:
        rows = [{"kind": "place"} | row for row in columns.rows(measured, only)]
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif options.compare:
        _compare(measured, only)
    else:
        if options.op and not any(results.rows for results in of_op):
            command = f"nox -s bench leaderboard -- --op {options.op}"
            complain(f"no result of {options.op} is recorded yet: {command}")
        devices, shown = ([ranked(each, tuned_on(each, about)) for each in group]
                          for group in (recorded, of_op))  # fmt: skip
        _draw(devices, shown, options.op, only)
    return 0


def _draw(devices: Sequence[Device], shown: Sequence[Device], op: str | None, only: str) -> None:
    """Draw all boards and the page; print the boards to show, or a summary of the last device's."""
    from common.board import terminal
    from common.board.page.site import Site

    # a record without times is not committed
    if timed := [device for device in devices if device.results.timed]:
        _write(timed)
    page = Site(devices, solutions.everyone(installed=False)).write(paths.SITE)
    console = terminal.console()
    if op or only:
        for device in shown:
            measured = _measured(devices) if device.modelled else ()
            terminal.show(device, console, only, measured)
    else:
        last = max(shown, key=lambda device: runs.files(device.results.path)[-1].name)
        terminal.show_summary(last, console)
    console.print(f"the page: {page.relative_to(paths.ROOT)}", style="dim")


def _measured(devices: Sequence[Device]) -> list[Record]:
    """Return the rows that the modelled GPU measured, of the cases that the ops still have."""
    from common import ops  # torch is there, since bench ran here

    return [row for device in devices if device.name == model.DEFAULT
            for op in ops.valid(ops.names()) for row in device.results.of_board(op)]  # fmt: skip


def _compare(devices: Sequence[Device], only: str) -> None:
    """Print the latest two runs of each device side by side.

    Raises:
        UserError: There are no two runs to compare.
    """
    from common.board import terminal

    compared = {device: found for device in devices if device.timed and (found := compare(device))}
    if not compared:
        raise UserError("no op was measured in two runs on one GPU: run bench again there")
    for device, comparisons in compared.items():
        terminal.show_comparisons(device, comparisons, terminal.console(), only)


def _write(timed: Sequence[Device]) -> None:
    """Write LEADERBOARD.md, the parts of the READMEs and the plots."""
    from common.board import markdown, overview, sweeps

    paths.replace(paths.ROOT / "LEADERBOARD.md", markdown.leaderboard(timed).encode())
    board, picture = markdown.board(timed), markdown.picture(timed[0])
    for name, head in READMES.items():
        markdown.insert(paths.ROOT / name, board)
        markdown.insert(paths.ROOT / name, markdown.ops(head), markdown.OPS)
        markdown.insert(paths.ROOT / name, picture, markdown.PICTURE)
    for device in timed:
        folder = paths.PLOTS / device.slug
        for name, drawn in (overview.files(device) | sweeps.files(device)).items():
            if drawn:
                folder.mkdir(parents=True, exist_ok=True)
                paths.replace(folder / name, drawn.encode())
