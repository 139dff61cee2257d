"""Kernels of `kernels` in Triton's interpreter; used by the tests of the interpreter.

`python -m tests.support.interpreting MODULE HOW` prints what each of the module's RUNS returns, as
JSON. Each time in a process of its own, since the patches of the interpreter cannot be taken back.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.support.waiting import LONGEST

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str | Path) -> Any:
    """Return what a script of `kernels` prints, which is JSON."""
    return printed(ROOT / "tests" / "support" / "kernels" / script, *arguments)


def results(module: str, how: str = "patched") -> Any:
    """Return what the module's RUNS return by name: `bare` in Triton's own interpreter.

    Of a run that raises: whether the exception says that it is not implemented, and its text.
    """
    return printed("-m", __name__, module, how)


def printed(*command: str | Path) -> Any:
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST,
    )
    return json.loads(done.stdout)


def main(name: str, how: str) -> None:
    # numpy 2.5 refuses this
    warnings.filterwarnings("error", "Conversion of an array with ndim > 0 to a scalar")
    if how != "bare":
        from common.sandbox.interpreter import patches

        patches.install()  # before a kernel imports names, as in a solution's process
    module, found = importlib.import_module(f"tests.support.kernels.{name}"), {}
    getattr(module, "prepare", lambda how: None)(how)
    for key, call in module.RUNS.items():
        torch.manual_seed(0)
        try:
            result = call()
            is_tensor = isinstance(result, torch.Tensor)
            found[key] = result.double().flatten().tolist() if is_tensor else result
        except Exception as error:
            cause = error.__cause__ or error
            found[key] = [isinstance(cause, NotImplementedError), str(cause)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
