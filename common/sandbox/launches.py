"""Full compilation, for a target, of the kernels that a solution launches in a case."""

from __future__ import annotations

from typing import Any

from triton import knobs

from common import wire
from common.sandbox.failures import judge
from common.sandbox.launch_log import LOG
from common.sandbox.session import Session
from common.sandbox.shape_only import board_case, directions
from common.spec import Direction
from common.wire import Reply

SEED = 0
"""The seed of the inputs."""


def at_full_shape(session: Session, request: wire.AtFullShape) -> Reply:
    """Compile the kernels of one of the board's cases at its full shape, for the process's target.

    Returns:
        In `kernels`, each kernel's hash, name, files by extension and the direction that launched
        it first. In `stopped`, the verdict, the reason and the direction if the call raised an
        exception; in `caught`, the verdict and the reason of a launch's exception that it caught.
    """
    assert session.op is not None and session.function is not None
    kernels: dict[str, Reply] = {}

    def compiled(src: Any, metadata: Reply, metadata_group: Reply, **_: Any) -> None:
        files = {path.rpartition(".")[2]: path for path in metadata_group.values()}
        kernels[metadata["hash"]] = {
            "hash": metadata["hash"], "name": src.name, "files": files, "direction": begun[-1],
        }  # fmt: skip

    knobs.compilation.listener = compiled
    begun: list[Direction] = ["forward"]
    reply: Reply = {}
    LOG.clear()
    try:
        for direction in directions(session, board_case(session, request.case), SEED):
            begun.append(direction)
    except Exception as error:
        reply = judge(error) | {"direction": begun[-1]}
    caught = judge(LOG.error) if LOG.error else {}
    return {"kernels": list(kernels.values()), "stopped": reply, "caught": caught}
