"""`study tune`: search configurations, and print the progress and the results."""

from __future__ import annotations

import argparse

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
    chosen, device = shared.contributors(options), shared.device(options)
    if device == "cpu":
        raise UserError("tune needs a GPU: without one nothing is timed")
    from common import tuning
    from common.grading.device import DeviceMemory
    from common.grading.sweep import Sweep
    from common.measure import machine

    memory = DeviceMemory.of(device, options.memory)
    lines: list[str] = []
    with Sweep(device, not options.verbose, memory=memory) as sweep, Progress("cases") as steps:
        done = cases = 0
        for event in tuning.tune(sweep, chosen):
            steps.total(event.cases)
            for _ in range(done, event.case):
                steps.done(event.doing)
            done, cases = event.case, event.cases
            if event.doing:
                steps.doing(event.doing)
            if event.warning:
                steps.say(event.warning)
            lines += event.lines
    print(*lines, sep="\n", end="\n" if lines else "")
    file = f"contributors/{chosen[0].handle}/configs/{machine.results_folder(device)}.json"
    print(f"study: the best of each shape is in {file}" if cases else "nothing is left to search")
    return 0
