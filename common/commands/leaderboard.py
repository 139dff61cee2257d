"""`study leaderboard`: draw the board from the records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from common import paths, solutions
from common.commands import bench
from common.commands import options as shared
from common.errors import UserError
from common.importing import require
from common.processes import cores, processes

if TYPE_CHECKING:
    from common.board.plots.figures import Drawing
    from common.board.table import About
    from common.records.runs import Results

NOTHING = "nothing is recorded yet: run bench first (nox -s bench leaderboard)"
READMES = {"README.md": ("op", "signature"), "README.ko.md": ("연산", "시그니처")}
"""The READMEs, with the heading of their list of ops."""

OUTPUT_OPTIONS = {
    "--compare": "the latest two runs side by side; writes nothing",
    "--devices": "each device's speeds side by side; writes nothing",
    "--model": "modelled beside measured times; writes nothing",
    "--json": "print the boards as a list of objects; writes nothing",
    "--csv": "print the boards as a table for scripts; writes nothing",
    "--times": "print each case's times and memory as a table for scripts; writes nothing",
    "--serve": "draw the page and show it at a local address",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `bench`'s options, since nox passes the same to both commands, and the output options.

    With an output option no file is written but the page.
    """
    bench.add_arguments(parser)
    beside = parser.add_mutually_exclusive_group()
    for option, help in OUTPUT_OPTIONS.items():
        beside.add_argument(option, action="store_true", help=help)


def run(options: argparse.Namespace) -> int:
    """Show the board from the records; write LEADERBOARD.md, the README's board, plots and page."""
    if not (exported := options.json or options.csv or options.times):
        require(["rich"])  # before the records are read
    device_results, about = _recorded(options), shared.about()
    of_op = [results.of_op(options.op) for results in device_results]
    if options.compare:
        return _compare(of_op, about, options.only)
    if options.devices:
        return _side_by_side(of_op, about, options.only)
    if options.model:
        return _modelled(of_op, about, options.only)
    if exported:
        return _export(of_op, about, options)
    if options.serve:
        return _serve(device_results)
    if options.op and not any(results.rows for results in of_op):
        bench_command = f"nox -s bench leaderboard -- --op {options.op}"
        print(f"study: no result of {options.op} is recorded yet: {bench_command}", file=sys.stderr)
    return _draw(device_results, of_op, about, options.only)


def _draw(
    device_results: Sequence[Results],
    of_op: Sequence[Results],
    about: Mapping[str, About],
    only: str | None,
) -> int:
    """Draw the boards of all records, and print the boards of the chosen op."""
    from common.board import modelled, terminal

    # a record without times is not committed
    timed = [results for results in device_results if results.timed]
    with _plots_in_background(_plots(timed, about)):
        rewritten = _write(timed, about) if timed else []
        page = _draw_page(device_results)
        console = terminal.console()
        for results in of_op:
            shown = modelled.placed(results, of_op, only) if only else results
            terminal.show(shown, about, console, only or "")
    if rewritten:
        console.print(f"rewrote {' and '.join(rewritten)}, between their markers", style="dim")
    console.print(f"the page: {page}", style="dim")
    return 0


def _recorded(options: argparse.Namespace) -> list[Results]:
    """Return the records of each device in the order of boards.

    Raises:
        UserError: There are no records, or the op or solution does not exist.
    """
    from common.board.devices import ordered
    from common.records import runs

    if options.op or options.only:
        solutions.select(solutions.everyone(installed=False), options.op, options.only)
    if not (device_results := runs.read_all()):
        raise UserError(NOTHING)
    return ordered(device_results)


def _compare(
    device_results: Sequence[Results], about: Mapping[str, About], only: str | None
) -> int:
    """Print the changes between the latest two runs of each device."""
    from common.board import comparison, terminal

    timed = [
        (results, comparison.compare(results, about)) for results in device_results if results.timed
    ]
    if not any(found for _, found in timed):
        raise UserError("no op was measured in two finished runs on one GPU: run bench again there")
    console = terminal.console()
    for results, found in timed:
        if found:
            terminal.show_comparisons(results, found, console, only or "")
    return 0


def _modelled(
    device_results: Sequence[Results], about: Mapping[str, About], only: str | None
) -> int:
    """Print the modelled and the measured times on each modelled GPU."""
    from common.board import modelled, terminal
    from common.board.model import GPUS

    counts = modelled.latest(device_results)
    console, shown = terminal.console(), False
    for results in device_results:
        gpu = GPUS.get(results.runs[-1].device_name) if results.timed else None
        rows = [row for row in results.latest() if row.solution in about]
        if gpu and (pairs := modelled.pairs(rows, counts, gpu)):
            terminal.show_tables(modelled.tables(pairs, gpu), console, only or "")
            shown = True
    if not shown:
        raise UserError(
            f"no row of {', '.join(GPUS)} is counted: count without a GPU (bench --device cpu)"
        )
    return 0


def _side_by_side(
    device_results: Sequence[Results], about: Mapping[str, About], only: str | None
) -> int:
    """Print each solution's speed on each device, in units of eager's speed."""
    from common.board import terminal
    from common.board.devices import devices, side_by_side

    gpus = devices([results for results in device_results if results.timed], about)
    if len(gpus) < 2:
        raise UserError("fewer than two GPUs have records: run bench on another one")
    terminal.show_tables(side_by_side(gpus, about), terminal.console(), only or "")
    return 0


def _export(
    device_results: Sequence[Results], about: Mapping[str, About], options: argparse.Namespace
) -> int:
    """Print the boards as data."""
    from common.board import columns
    from common.board.devices import devices

    all_devices, only = devices(device_results, about), options.only or ""
    if options.times:
        print(columns.as_csv(columns.cases(all_devices, only), columns.CASE_FIELDS), end="")
        return 0
    rows = columns.rows(all_devices, about, only)
    print(columns.as_json(rows) if options.json else columns.as_csv(rows), end="")
    return 0


def _serve(device_results: Sequence[Results]) -> int:
    """Draw the page and serve it on the loopback address until Ctrl-C."""
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    page = paths.ROOT / _draw_page(device_results)
    handler = partial(SimpleHTTPRequestHandler, directory=str(page.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(f"the page: http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
        with suppress(KeyboardInterrupt):  # Ctrl-C ends the server
            server.serve_forever()
    return 0


def _plots(timed: Sequence[Results], about: Mapping[str, About]) -> list[Drawing]:
    """Return the plots whose records have changed since the last drawing."""
    from common.board.plots import figures, sweeps

    due = []
    for results in timed:
        plots = sweeps.plots(sweeps.rows_of(results, about))
        folder = paths.PLOTS / results.path.name
        due += figures.due(plots, results.runs[-1].device_name, folder)
    return due


@contextmanager
def _plots_in_background(plots: Sequence[Drawing]) -> Iterator[None]:
    """Draw plots in background processes during the block, on all cores but one."""
    if not plots:
        yield
        return
    with processes(min(max(cores() - 1, 1), len(plots))) as pool:
        waiting = [pool.submit(plot.write) for plot in plots]
        yield
        for job in waiting:
            job.result()


def _write(timed: Sequence[Results], about: Mapping[str, About]) -> list[str]:
    """Write LEADERBOARD.md, and the READMEs' board, picture and list of ops.

    Returns:
        The names of the changed READMEs.
    """
    from common import files
    from common.board import markdown
    from common.board.plots import overview

    text = markdown.leaderboard(timed, about)
    files.replace(paths.ROOT / "LEADERBOARD.md", text.encode())
    board, picture = markdown.board(timed, about), markdown.picture(timed, about)
    before = {name: (paths.ROOT / name).read_bytes() for name in READMES}
    markdown.insert(paths.ROOT / "README.md", board)
    for name, head in READMES.items():
        markdown.insert(paths.ROOT / name, markdown.ops(head), markdown.OPS)
        markdown.insert(paths.ROOT / name, picture, markdown.PICTURE)
    for results in timed:
        overview.draw(results, about, paths.PLOTS / results.path.name)
    return [name for name, text in before.items() if (paths.ROOT / name).read_bytes() != text]


def _draw_page(device_results: Sequence[Results]) -> Path:
    """Write the page, including records made without a GPU, and return the page's path."""
    from common.board.page.site import Site

    page = Site(device_results, solutions.everyone(installed=False)).write(paths.SITE)
    return page.relative_to(paths.ROOT)
