"""One `study` in a process that was forked after torch had been imported, which takes seconds.

`multiprocessing`'s fork server imports the heavy packages once and forks a clean process for each
call; that process has imported nothing of ours, so that it takes `common` from the copied
repository. This module imports nothing of ours either.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "triton", "triton.language", "numpy", "msgspec", "rich.console", "rich.progress"]
)


def run(arguments: list[str], folder: Path, output: Path, timeout: float) -> int | None:
    """Run `study` as `python -m common` in the folder would; return its exit code.

    The files `out` and `err` in the folder `output` hold what it prints.
    """
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    process = CONTEXT.Process(target=_study, args=(arguments, folder, output, environment))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"study {' '.join(arguments)} did not end within {timeout:g} s")
    return process.exitcode


def _study(arguments: list[str], folder: Path, output: Path, environment: dict[str, str]) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        opened = os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    from common.cli import main

    assert Path(sys.modules["common.cli"].__file__).is_relative_to(folder)
    main(arguments)
