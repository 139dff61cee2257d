"""Differentiate gradients again: `second_derivatives FILE...`, of any solutions.

A line of JSON: by `folder/name` and way of differentiating, "right", "wrong", or "error", if one is
raised. The ways differ in the upstream gradient, a constant or not, and in the function that is
called: `torch.autograd.grad` visits the nodes between the loss and the given inputs alone.
"""

import contextlib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

os.environ["TRITON_INTERPRET"] = "1"

import torch

from common import ops
from common.gradients import outputs_of
from common.sandbox.interpreter import patches

UPSTREAM = {"constant": lambda out: out.sum(), "of the output": lambda out: out.square().sum()}
CALLS = {
    "grad": torch.autograd.grad,
    "backward": lambda loss, leaves: (loss.backward(), *(leaf.grad for leaf in leaves))[1:],
}
DEFAULT = {"tensor_format": "sbhd", "interleaved": False, "cp_size": 1, "cp_rank": 0}


def called(function, op, case) -> tuple[Sequence[torch.Tensor], list[torch.Tensor]]:
    """Return the outputs and the leaves of a case, whose options are given where they matter."""
    arguments = op.draw(case, torch.Generator().manual_seed(0))
    leaves = [arguments[name].requires_grad_() for name in op.differentiable]
    tensors = [each for each in arguments.values() if torch.is_tensor(each)]
    options = {
        name: value
        for name, value in arguments.items()
        if not torch.is_tensor(value) and value != DEFAULT.get(name, ...)
    }
    return outputs_of(function(*tensors, **options)), leaves


def derivative(function, op, case, inner, call) -> list[torch.Tensor]:
    """Return the gradients of a loss that the outputs and their gradients are part of."""
    outs, leaves = called(function, op, case)
    gradients = torch.autograd.grad(sum(map(inner, outs)), leaves, create_graph=True)
    loss = sum(out.sum() for out in outs) + sum(each.square().sum() for each in gradients)
    return call(loss, leaves)


def verdict(function, op, case, *way) -> str:
    wanted = derivative(op.reference, op, case, *way)
    try:
        got = derivative(function, op, case, *way)
    except NotImplementedError as error:
        if "second derivative" not in str(error):
            raise
        return "error"
    errors = [(a - b).norm() / b.norm() for a, b in zip(got, wanted, strict=True)]
    return "right" if max(errors) < 1e-4 else "wrong"


def verdicts(function, op) -> dict[str, str]:
    """Return the verdict of each way, on the first case that the function takes."""
    for case in (each for each in op.cases("smoke") if each.dtype == "float32"):
        with contextlib.suppress(NotImplementedError):
            return {
                f"{upstream}, {name}": verdict(function, op, case, inner, call)
                for upstream, inner in UPSTREAM.items()
                for name, call in CALLS.items()
            }
    return {}


@contextlib.contextmanager
def imported(file: Path) -> Iterator[ModuleType]:
    """Import a solution beside its helpers, which are forgotten again."""
    sys.path.insert(0, str(file.parent))
    yield importlib.import_module(file.stem)
    sys.path.pop(0)
    for name, module in [*sys.modules.items()]:
        if Path(getattr(module, "__file__", None) or "").parent == file.parent:
            del sys.modules[name]


def main(*files: Path) -> None:
    warnings.simplefilter("ignore")
    patches.install()
    found: dict[str, dict[str, str]] = {}
    for file in files:
        op = ops.load(max((op for op in ops.names() if file.stem.startswith(op)), key=len))
        with imported(file) as module:
            found[f"{file.parent.name}/{file.stem}"] = verdicts(getattr(module, op.name), op)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
