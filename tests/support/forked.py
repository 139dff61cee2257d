"""One program in a process that was forked after torch had been imported, which takes seconds.

`multiprocessing`'s fork server imports the heavy packages once and forks a clean process for each
call; that process has imported nothing of ours, so that it takes `common` from the copied
repository. This module imports nothing of ours either.
"""

import multiprocessing
import os
import random
import runpy
import sys
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "triton", "triton.language", "numpy", "msgspec", "rich.console", "rich.progress"]
)


def run(
    module: str,
    arguments: list[str],
    folder: Path,
    output: Path,
    environment: dict[str, str],
    timeout: float = 300,
) -> int | None:
    """Run a program as `python -m module` in `folder` would; write `out` and `err` to `output`."""
    wanted = ([module, *arguments], folder, output, environment)
    process = CONTEXT.Process(target=_run, args=wanted)
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"{module} {' '.join(arguments)} did not end within {timeout:g} s")
    return process.exitcode


def _run(words: list[str], folder: Path, output: Path, environment: dict[str, str]) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        opened = os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    assert "common" not in sys.modules
    sys.path[:0] = [str(folder), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv[:] = words
    _seed(environment)
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _seed(environment: dict[str, str]) -> None:
    """Have the program draw from the seed of the test run; see seeds.py."""
    if "STUDY_TEST_SEED" in environment:
        from common import draws

        draws.SOURCE = random.Random(int(environment["STUDY_TEST_SEED"]))
