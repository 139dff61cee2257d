"""`study tune`: search configurations, and print the progress and the results."""

from __future__ import annotations

import argparse

from common.commands import options as shared
from common.commands.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder's handle."""
    shared.add(parser, *shared.RUNNING, "handle", "of")


def run(options: argparse.Namespace) -> int:
    """Search a folder's declared configurations, and write the best to the folder's configs."""
    shared.folder_of(options)
    chosen, device = shared.contributors(options), shared.gpu(options)
    from common.commands import tuning
    from common.grading.sweep import Sweep
    from common.measure import machine

    with Sweep(device, not options.verbose) as sweep, Progress("cases") as steps:
        lines = tuning.tune(sweep, chosen, steps)
    file = f"contributors/{chosen[0].handle}/configs/{machine.results_folder(device)}.json"
    last = f"study: the best of each shape is in {file}" if lines else "nothing is left to search"
    print(*lines, last, sep="\n")
    return 0
