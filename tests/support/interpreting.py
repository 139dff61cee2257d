"""Run a script of `kernels` in a process of its own; used by the tests of the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.waiting import LONGEST

KERNELS = Path(__file__).parent / "kernels"
ROOT = KERNELS.parents[2]


def run(script: str, *arguments: str | Path) -> Any:
    """Return what the script prints, which is JSON."""
    done = subprocess.run(
        [sys.executable, KERNELS / script, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST,
    )
    return json.loads(done.stdout)
