"""Kernels of `kernels` in Triton's interpreter; used by the tests of the interpreter.

`python -m tests.support.interpreting MODULE HOW` prints what became of each of the module's CASES,
as JSON. In a process of its own, since the patches of the interpreter cannot be taken back.
"""

import importlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.processes import run

ROOT = Path(__file__).parents[2]
RIGHT = "right"
UNSUPPORTED = "unsupported: "


def results(module: str, how: str = "patched") -> dict[str, str]:
    """Return by case whether it is RIGHT, or what it gives: `bare` in Triton's own interpreter."""
    found: dict[str, str] = printed("-m", __name__, module, how)
    return found


def printed(*command: str) -> Any:
    """Return what a program prints, which is JSON."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    return json.loads(run(sys.executable, *command, env=env, check=True).stdout)


def outcome(call: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    try:
        return call()
    except Exception as error:
        cause = error.__cause__ or error
        return f"{UNSUPPORTED if isinstance(cause, NotImplementedError) else ''}{cause}"


def is_right(found: Any, wanted: Any) -> bool:
    """Return whether a result is the wanted one, matches a pattern, or has a tensor's values."""
    if isinstance(wanted, str):
        return isinstance(found, str) and bool(re.match(wanted or "$", found))
    if not isinstance(wanted, torch.Tensor):
        return bool(found == wanted)
    rounding = 1e-5 if wanted.dtype == torch.float64 else 0.0  # of a product that is summed
    return torch.is_tensor(found) and torch.allclose(
        found.double(), wanted.double(), rtol=rounding, atol=rounding, equal_nan=True
    )


def main(name: str, how: str) -> None:
    # numpy 2.5 refuses this
    warnings.filterwarnings("error", "Conversion of an array with ndim > 0 to a scalar")
    if how != "bare":
        from common.sandbox.interpreter import patches

        patches.install()  # before a kernel imports names, as in a solution's process
    module, told = importlib.import_module(f"tests.support.kernels.{name}"), {}
    for key, (call, wanted) in module.CASES.items():
        found = outcome(call)
        told[key] = RIGHT if is_right(found, wanted) else f"{found}, wanted {wanted}"
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
