"""`bench --missing`: select solutions that a device has not measured, also of pull requests."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import paths, solutions
from common.commands import options as shared
from common.errors import UserError
from common.solutions import Solution


def argument(parser: argparse.ArgumentParser) -> None:
    """Add `--missing`."""
    parser.add_argument(
        "--missing",
        nargs="*",
        type=pull,
        metavar="PULL[@COMMIT]",
        help="only solutions whose present sources this device has not measured: those of the"
        " working tree, or those in contributors/ of these pull requests of origin",
    )


def pull(text: str) -> tuple[int, str]:
    """Return the number of a pull request and its commit, "" for any commit, for argparse.

    Raises:
        argparse.ArgumentTypeError: The text names no pull request.
    """
    if not (match := re.fullmatch(r"([1-9]\d*)(?:@([0-9a-f]{40}))?", text, re.ASCII)):
        raise argparse.ArgumentTypeError(f"{text!r} is no pull request: give 12, or 12@COMMIT")
    return int(match[1]), match[2] or ""


def missing(chosen: Sequence[Solution], options: argparse.Namespace) -> list[Solution]:
    """Return the solutions that some device of this machine has not measured as they are now.

    A solution is measured if a finished run has a row with the solution's digest.

    Raises:
        UserError: `--address` selects other machines, or the device does not exist.
    """
    if options.address:
        raise UserError("--missing asks for the devices of this machine: leave --address out")
    # kept, since `cuda:1` is called `cuda` once it is the only visible GPU
    options.device = shared.found_device(options)
    from common.measure import machine
    from common.records import runs

    unmeasured: set[Solution] = set()
    for folder in machine.results_folders(options.device):
        results = runs.read(paths.RESULTS / folder)
        rows = (row for row in results.rows if row.run in results.finished)
        measured = {(row.solution, row.sources) for row in rows if row.tier == options.tier}
        unmeasured |= {
            solution for solution in chosen if (solution.name, solution.digest) not in measured
        }
    return [solution for solution in chosen if solution in unmeasured]


@contextlib.contextmanager
def of_pulls(pulls: Sequence[tuple[int, str]]) -> Iterator[list[str]]:
    """Check out the folders of pull requests, yield their handles, and remove the folders.

    Raises:
        UserError: git cannot fetch a pull request, its commit differs, or a folder has local
            changes.
    """
    with contextlib.ExitStack() as folders:
        names = [name for pull in pulls for name in folders.enter_context(_of_pull(*pull))]
        handles = {solution.handle for solution in solutions.discover()}
        left_out = solutions.left_out()
        for name in names:
            if name not in handles:
                reason = left_out.get(name, "it has no solution")
                print(f"study: contributors/{name} is left out: {reason}", file=sys.stderr)
        yield [name for name in names if name in handles]


@contextlib.contextmanager
def _of_pull(number: int, commit: str) -> Iterator[list[str]]:
    _git("fetch", "--quiet", "origin", f"pull/{number}/head")
    head = _git("rev-parse", "FETCH_HEAD").strip()
    if commit not in ("", head):
        raise UserError(f"pull request {number} is at {head}, not at {commit}: look at it again")
    differing = _git("diff", "--name-only", "-z", f"HEAD...{head}", "--", "contributors/")
    within = [Path(name).parts[1:] for name in differing.split("\0")[:-1]]
    names = sorted({parts[0] for parts in within if len(parts) > 1 and parts[0][0] not in "_."})
    folders = [f"contributors/{name}" for name in names]
    if folders and (changed := _git("status", "--porcelain", "--", *folders)):
        raise UserError(f"pull request {number} has a folder with changes here: {changed.strip()}")
    try:
        if folders:
            _git("restore", "--worktree", f"--source={head}", "--", *folders)
        yield names
    finally:
        tracked = [folder for folder in folders if _git("ls-files", "--", folder)]
        if tracked:
            _git("restore", "--worktree", "--", *tracked)
        if folders:
            _git("clean", "-fdxq", "--", *folders)


def _git(*words: str) -> str:
    """Run git in this repository with literal paths, and return its output.

    Raises:
        UserError: git fails.
    """
    command = ["git", "--literal-pathspecs", *words]
    process = subprocess.run(command, cwd=paths.ROOT, capture_output=True)
    if process.returncode:
        lines = os.fsdecode(process.stderr).strip().splitlines()
        raise UserError(f"git {' '.join(words[:4])}: {lines[-1] if lines else 'failed'}")
    return os.fsdecode(process.stdout)
