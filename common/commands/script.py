"""`study check --case NAME --script FILE`: write a case as a script of torch and Triton alone.

It has the inputs, the op's reference, the call and the comparison: for an issue or a debugger.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Any

import torch

from common import paths
from common.commands.answers import CaseAnswer
from common.commands.reference import reference_of
from common.commands.report import CheckResult
from common.ops._draw import draw, given
from common.solutions import Solution

TEMPLATE = Path(__file__).with_name("script.txt")
MOST_KEPT = 1 << 13
"""The most elements of a tensor whose very values are in the script; larger ones are drawn anew."""


def write(file: Path, solutions: Iterable[Solution], result: CheckResult) -> None:
    """Write the checked case of the first solution that has it."""
    by_name = {solution.name: solution for solution in solutions}
    (name, _), answer = next(iter((result.board.by_name | result.smoke.by_name).items()))
    file.write_text(written(answer, by_name[name]))
    print(f"wrote {file}: python {file} repeats the case")


def written(answer: CaseAnswer, solution: Solution) -> str:
    """Return the script of a graded case."""
    op, case = answer.op, answer.case
    arguments, upstream = draw(op, case, seed=0, device="cpu")
    inputs, options = given(op, arguments)
    differentiable = list(op.differentiable) if "backward" in case.directions else []
    failures = [failure for _, failure in answer.failures] or [*answer.verdicts.values()]
    said = [f"{each.direction}: {each.verdict} {each.reason}" for each in failures]

    def entries(values: Mapping[str, Any], over: Collection[str] = ()) -> str:
        return "".join(f'\n    "{name}": {_literal(value, name in over)},'
                       for name, value in values.items()) + "\n" * bool(values)  # fmt: skip

    return Template(TEMPLATE.read_text()).substitute(
        title=f"{solution.name} in the case {case.name}.",
        reason="\n".join(said).replace("\\", "/").replace('"""', "'''"),
        command=f"nox -s check -- {solution.name} --case {case.name} --script FILE",
        op=op.name,
        path=solution.path.relative_to(paths.ROOT),
        slack=op.slack[case.dtype],
        reference="\n\n".join(text for text in reference_of(op.name) if text != "import torch"),
        inputs=entries(inputs, differentiable),
        options=entries(options),
        upstream=entries(dict(zip(op.outputs(case), upstream.values(), strict=True))),
        differentiable=differentiable,
    )


def _literal(value: Any, grad: bool) -> str:
    """Return an argument as an expression."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    once = tuple(slice(0, None if stride else 1) for stride in value.stride())
    values: str | float = ""
    if value.is_floating_point() and value.numel() > MOST_KEPT:
        values = float(value[once].double().std())
    elif value.numel():
        raw = value[once].contiguous().flatten().view(torch.uint8).numpy().tobytes()
        values = base64.b85encode(zlib.compress(raw, 9)).decode()
    layout = [*value.shape], [*value.stride()], value.storage_offset()
    dtype = str(value.dtype).removeprefix("torch.")
    given = ", ".join(map(repr, (dtype, *layout, values)))
    return f"tensor({given}{', grad=True' * grad})"
