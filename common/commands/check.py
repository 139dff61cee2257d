"""`study check`: grade one folder on the smoke cases and measure it on the board's cases."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from common import paths
from common.commands import options as shared
from common.disk_cache import DiskCache
from common.errors import UserError
from common.folders import imports_of_ours, printing
from common.printable import complain
from common.processes import import_torch, require
from common.solutions import Solution, peers

if TYPE_CHECKING:
    from common.commands.answers import Failures
    from common.commands.grader import Grader
    from common.commands.report import CheckResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder's handle."""
    shared.add(parser, *shared.RUNNING, "--json", "handle", "of")
    parser.add_argument("-x", "--exitfirst", action="store_true", help="end at the first failure")
    named = "only this case, of any sizes and options that a name says, with every kind of call"
    parser.add_argument("--case", metavar="NAME", help=named)
    alone = "with --case, write the case to this file as a script of torch and Triton alone"
    parser.add_argument("--script", type=Path, metavar="FILE", help=alone)
    spoken = "the language of the last lines and of hints; default: that of LANG"
    parser.add_argument("--lang", choices=("en", "ko"), help=spoken)
    exercise = "the next exercise of the path, and a hint; with --watch, after each save"
    parser.add_argument("--hint", action="store_true", help=exercise)
    either = parser.add_mutually_exclusive_group()
    for *names, help in (
        ("--lf", "--last-failed", "only the cases that failed last; all where none did"),
        ("--watch", "grade the smoke cases again after each save; with --case, time that case too"),
    ):
        either.add_argument(*names, action="store_true", help=help)


def run(options: argparse.Namespace) -> int:
    """Grade and measure one folder; print its failures, or its places on the board."""
    shared.folder_of(options)
    if options.lang:
        os.environ["LC_ALL"] = options.lang
    folder = paths.CONTRIBUTORS / options.only.partition("/")[0]
    if options.hint and (options.case or options.lf):
        raise UserError("--hint takes the cases of the exercise: leave --case and --lf out")
    if options.script and not options.case:
        raise UserError("--script writes one case: name it with --case")
    if options.json and (options.hint or options.watch):
        raise UserError("--json writes one check: leave --hint and --watch out")
    if options.hint and not folder.is_dir():
        raise UserError(f"the path begins with a kernel: nox -s new -- {folder.name} rotate_half")
    if not ((options.hint or options.watch) and folder.is_dir()):  # they await a first solution
        solutions = shared.contributors(options)
        if refused := list(imports_of_ours(folder)):
            print("\n".join(refused))
            return 1
        if not options.verbose and (names := printing(folder)):
            complain(f"what {', '.join(names)} prints is hidden: --verbose shows it")
    if options.watch:
        require(["watchfiles"])
    from common.commands.result import output

    with output(options.json) as written:
        with started(options) as grader:
            if options.watch:
                from common.commands import watch

                return watch.run(grader, options)
            if options.hint:
                from common.commands import hint

                hint.run(grader, options)
                return 0
            from common.commands.report import show

            result = checked(solutions, grader, options)
            written.extend(result.objects())
            if options.script:
                from common.commands import script

                script.write(shared.writable(options.script), solutions, result)
            show(result, solutions)
        if result.named_ops and not result.failed:
            from common.commands.bench import measure_named

            beside = [*solutions, *peers()[0]]
            chosen = [solution for solution in beside if solution.op in result.named_ops]
            written.extend(measure_named(options, chosen, [options.case]))
    return int(result.failed)


@contextlib.contextmanager
def started(options: argparse.Namespace) -> Iterator[Grader]:
    """Start a fork server and a compiler; import torch here while the server imports it."""
    from common.grading.fork_server import ForkServer

    device, quiet = shared.device(options), not options.verbose
    with contextlib.closing(ForkServer(device, quiet=quiet)) as server:
        import_torch()
        from common.commands.grader import Grader
        from common.grading.compiling import Compiler

        with Compiler(device, quiet=quiet) as compiler:
            yield Grader(server, compiler, options.exitfirst)


def checked(
    solutions: Sequence[Solution], grader: Grader, options: argparse.Namespace
) -> CheckResult:
    """Grade the smoke cases and, if none failed, measure the board's cases.

    The first failures are printed as they are found. The cases that fail are kept for
    `--last-failed`, with earlier ones that are not run.
    """
    from common.commands.grader import Asked
    from common.commands.report import CheckResult, TierReport

    handle = solutions[0].handle
    smoke, board = TierReport(options.verbose), TierReport(options.verbose)
    names, kept = {solution.name for solution in solutions}, DiskCache("failed", handle, str)
    # each with the cases that its process must answer before it
    failures: Failures = {(name, case): tuple(after)
                          for name, case, *after in kept.found.get("cases", ())}  # fmt: skip
    asked = Asked(solutions)
    if options.case is not None:
        asked = grader.named(options.case, solutions)
    elif options.lf:
        asked = Asked(solutions, {key for key in failures if key[0] in names})
    cases = asked.cases
    result = CheckResult(handle, grader.device, cases, smoke, board)
    result.named_ops = {op.name for op, _ in asked.due}
    before = {(name, case) for name, failing in cases
              for case in failures.get((name, failing)) or ()} - cases  # fmt: skip
    if before:
        print(f"First come {len(before)} cases after which a case failed, in one process.")
    try:
        result.summaries = grader.report_smoke(Asked(solutions, cases | before), smoke)
        # the failure's cause ends the output, and the board's cases would repeat the failure
        if not smoke.failures and (result.answers or cases):
            result.rows = grader.measure_board(asked, board)
            result.summaries += board.summaries("board", grader.device)
        if options.case and options.case not in {case for _, case in cases}:
            result.summaries = [structs.replace(each, stands_for=options.case)
                                for each in result.summaries]  # fmt: skip
    finally:
        # the cases before a board's case are the board's, which are not asked again before it
        known = board.update(smoke.update(failures)) | dict.fromkeys(board.failures)
        kept.found = {"cases": sorted([*key, *(after or ())] for key, after in known.items())}
        kept.save()
    return result
