"""`study tune`: search configurations, and print the progress and the results."""

from __future__ import annotations

import argparse
import contextlib

from common.commands import options as shared
from common.commands.progress import Progress
from common.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder's handle."""
    shared.running_arguments(parser)
    shared.handle_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Search a folder's declared configurations, and write the best to the folder's configs."""
    options.only = shared.one_of(options.handle, options.only, "HANDLE")
    chosen = shared.contributors(options)
    device = shared.device(options)
    if device == "cpu":
        raise UserError("tune needs a GPU: without one nothing is timed")
    from common.measure import machine
    from common.tuning import search
    from common.tuning.search import CaseStarted, ConfigTimed, Found

    results: list[Found] = []
    started = False
    with (
        contextlib.closing(
            search.tune(chosen, device, quiet=not options.verbose, memory=options.memory)
        ) as events,
        Progress("cases") as steps,
    ):
        for event in events:
            match event:
                case CaseStarted(solution, case, number, total):
                    started = True
                    steps.total(total)
                    if number > 1:
                        steps.done(f"{solution.name} {case.name}")
                case ConfigTimed(task, done, total):
                    steps.doing(f"{task.shape}: {done} of {total} configurations")
                case str():
                    steps.say(event)
                case Found():
                    results.append(event)
    if started:
        for result in results:
            print(*result.lines(), sep="\n")
        file = f"{machine.results_folder(device)}.json"
        print(f"study: the best of each shape is in contributors/{chosen[0].handle}/configs/{file}")
    return 0
