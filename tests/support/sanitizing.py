"""Solutions and cases for the tests of either sanitizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

from common import ops
from common.commands import sanitize
from common.paths import CONTRIBUTORS, ROOT
from common.solutions import Solution
from common.tools import sanitizers
from tests.support.waiting import LONGEST

ROTATE_HALF = ops.load("rotate_half")
SMOKE = list(ROTATE_HALF.cases("smoke"))
CASES = [*SMOKE[:3:2], next(case for case in SMOKE if case.interleaved)]
HOUSE = Solution(CONTRIBUTORS / "house" / "rotate_half.py", "rotate_half")


def sanitized(solution=HOUSE, tools=sanitizers.TOOLS, cases=CASES):
    return sanitize.sanitize([solution], [(ops.load(solution.op), cases)], tools)


RIGHT = """
    import torch

    def rotate_half(x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)
"""


def written(folder, text, name="alice/rotate_half.py"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return Solution(path, "rotate_half")


PLAIN = (
    f"import sys; from common.sandbox.standalone import symbolic; symbolic.SECONDS = {LONGEST:g};"
    " symbolic.main(*sys.argv[1:])"
)


def symbolic(program, path, names):
    """The rows of that program over a solution; in a process, since triton-viz changes triton."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    op = "rope" if path.stem == "rope" else "rotate_half"
    ran = subprocess.run(
        [sys.executable, "-c", program, str(path), op, *names],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in ran.stdout.splitlines()]
