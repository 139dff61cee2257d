"""Differentiate gradients again: `second_derivatives FILE...`, solutions of one folder.

A line of JSON: by file and way of differentiating, "right", "wrong", or "error", if one is raised.
The ways differ in the upstream gradient, a constant or not, and in the function that is called:
`torch.autograd.grad` visits the nodes between the loss and the given inputs alone.
"""

import importlib
import json
import os
import sys
import warnings
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

from common import ops
from common.sandbox.interpreter import patches

UPSTREAM = {"constant": lambda out: out.sum(), "of the output": lambda out: out.square().sum()}
CALLS = {
    "grad": torch.autograd.grad,
    "backward": lambda loss, leaves: (loss.backward(), *(leaf.grad for leaf in leaves))[1:],
}


def called(function, op, case) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the output and the leaves of a case, whose options are given where they matter."""
    arguments = op.draw(case, torch.Generator().manual_seed(0))
    leaves = [arguments[name].requires_grad_() for name in op.differentiable]
    for name, value in DEFAULT.items():
        if arguments.get(name) == value:
            del arguments[name]
    tensors = [arguments.pop(name) for name in [*arguments] if torch.is_tensor(arguments[name])]
    return function(*tensors, **arguments), leaves


def takes(function, op, case) -> bool:
    try:
        called(function, op, case)
    except NotImplementedError:
        return False
    return True


def derivative(function, op, case, inner, call) -> list[torch.Tensor]:
    """Return the gradients of a loss that the output and its gradients are part of."""
    out, leaves = called(function, op, case)
    gradients = torch.autograd.grad(inner(out), leaves, create_graph=True)
    return call(out.sum() + sum(each.square().sum() for each in gradients), leaves)


DEFAULT = {"tensor_format": "sbhd", "interleaved": False, "cp_size": 1, "cp_rank": 0}


def verdict(function, op, case, inner, call) -> str:
    wanted = derivative(op.reference, op, case, inner, call)
    try:
        got = derivative(function, op, case, inner, call)
    except NotImplementedError as error:
        if "second derivative" not in str(error):
            raise
        return "error"
    errors = [(a - b).norm() / b.norm() for a, b in zip(got, wanted, strict=True)]
    return "right" if max(errors) < 1e-4 else "wrong"


def main(*files: Path) -> None:
    warnings.simplefilter("ignore")
    patches.install()
    sys.path.insert(0, str(files[0].parent))
    found: dict[str, dict[str, str]] = {}
    for stem in (file.stem for file in files):
        op = ops.load(max((op for op in ops.names() if stem.startswith(op)), key=len))
        function = getattr(importlib.import_module(stem), op.name)
        cases = (each for each in op.cases("smoke") if each.dtype == "float32")
        case = next(each for each in cases if takes(function, op, each))
        found[stem] = {
            f"{upstream}, {name}": verdict(function, op, case, inner, call)
            for upstream, inner in UPSTREAM.items()
            for name, call in CALLS.items()
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
