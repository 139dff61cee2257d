"""Requests about a solution's kernels: compile those of a case, and force tuned configurations."""

from __future__ import annotations

from typing import Any

import torch
from triton import knobs

from common import wire
from common.arena import dtype_name
from common.sandbox.configurations import CONFIGURATIONS
from common.sandbox.failures import judge
from common.sandbox.launches import LOG
from common.sandbox.session import Session
from common.sandbox.shape_only import directions
from common.spec import DIRECTIONS
from common.wire import Reply


def at_full_shape(session: Session, request: wire.AtFullShape) -> Reply:
    """Compile the kernels of one case at its full shape, for the process's target.

    Returns:
        As `kernels`, each kernel's hash, name, files by extension and the direction that launched
        it first; as `caught`, the verdict and the reason of a launch's exception that the call
        caught. If it raised an exception, also the verdict, the reason and the direction.
    """
    kernels: dict[str, Reply] = {}
    direction, stopped = DIRECTIONS[0], Reply()

    def compiled(src: Any, metadata: Reply, metadata_group: Reply, **_: Any) -> None:
        files = {path.rpartition(".")[2]: path for path in metadata_group.values()}
        kernels[metadata["hash"]] = {
            "hash": metadata["hash"], "name": src.name, "files": files, "direction": direction,
        }  # fmt: skip

    knobs.compilation.listener = compiled
    CONFIGURATIONS.begin(request.configurations)
    LOG.clear()
    try:
        case = session.solution.op.of_params(request.case)
        for begun in directions(session, case, seed=0):
            direction = begun
    except Exception as error:
        stopped = judge(error) | {"direction": direction}
    caught = judge(LOG.error) if LOG.error else {}
    return {"kernels": list(kernels.values()), "caught": caught, **stopped}


def tune(session: Session, request: wire.Tune) -> Reply:
    """Force configurations from now on; see docs/tuning.md.

    Return as `kernels`, the name, default and search space of each kernel. Return as `asked`,
    the shapes that the solution has looked up since the last request, without their
    configurations.
    """
    kernels = tuple(getattr(session.solution.module, "TUNED", ()))
    asked = [
        [kernel.name, [int(width) for width in widths], dtype_name(dtype), int(tokens)]
        for kernel in kernels
        for tokens, widths, dtype, *_ in kernel.asked
    ]
    for kernel in kernels:
        kernel.asked.clear()
        kernel.forced = {
            (tokens, tuple(widths), getattr(torch, dtype)): config
            for name, widths, dtype, tokens, config in request.choices
            if name == kernel.name
        }
    fields = ("name", "default", "space")
    described = [{field: getattr(kernel, field) for field in fields} for kernel in kernels]
    return {"kernels": described, "asked": asked}
