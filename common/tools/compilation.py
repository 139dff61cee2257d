"""Compile the solutions' kernels of the board's cases for GPUs that are not present."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from common import wire
from common.disk_cache import trim_caches
from common.errors import ServerEnded
from common.grading.fork_server import ForkServer
from common.grading.worker import DEADLINE, Worker
from common.processes import cores
from common.solutions import Solution
from common.spec import Case
from common.tools.figures import figures
from common.wire import Reply

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")


@dataclass(frozen=True)
class Compiled:
    """One kernel of a case, compiled for a target, or the reason why the call ended."""

    solution: str
    op: str
    case: str
    target: str
    sources: str
    """Digest of the solution with its helpers."""
    kernel: str = ""
    """Empty where the call ended before its last kernel."""
    direction: str = ""
    """The direction that launched the kernel first."""
    figures: Mapping[str, int] = field(default_factory=dict)
    """See `figures` in `tools/figures.py`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The kernel's files in Triton's cache, by suffix."""
    verdict: str = "PASSED"
    reason: str = ""


def compiled(
    todo: Mapping[Solution, Sequence[Case]], targets: Sequence[str], quiet: bool = True
) -> Generator[list[Compiled]]:
    """Yield the kernels of each solution and target in order; they compile concurrently.

    The end of the generator ends its processes. Triton's own cache keeps the kernels.

    Args:
        todo: The cases of each solution.
        targets: The targets to compile all solutions for.
        quiet: Whether to drop the output of the processes.
    """
    pool = ThreadPoolExecutor(cores())
    servers = {target: ForkServer("cpu", quiet, target=target, full=True) for target in targets}

    def of_target(solution: Solution, target: str) -> list[Compiled]:
        return _compiled(solution, todo[solution], target, servers[target])

    try:
        parts = itertools.product(todo, targets)
        yield from pool.map(lambda part: of_target(*part), parts)
    finally:
        for server in servers.values():
            server.interrupt()
        pool.shutdown(cancel_futures=True)
        for server in servers.values():
            server.close()
        trim_caches()


def _compiled(
    solution: Solution, cases: Sequence[Case], target: str, server: ForkServer
) -> list[Compiled]:
    """Return the kernels of the cases, and the calls that ended early.

    The cases run one after the other, so that no two compile the same kernel; the figures of each
    kernel are read once.
    """
    figures_of: dict[str, dict[str, int]] = {}
    same: dict[str, Any] = {
        "solution": solution.name,
        "op": solution.op,
        "sources": solution.digest,
    }
    found: list[Compiled] = []
    for case in cases:
        reply = _ask(server, solution, case.name)
        made: list[dict[str, Any]] = []
        for kernel in reply.get("kernels", []):
            if kernel["hash"] not in figures_of:
                figures_of[kernel["hash"]] = figures(kernel["files"])
            made.append({
                "kernel": kernel["name"], "direction": kernel["direction"],
                "figures": figures_of[kernel["hash"]], "files": kernel["files"],
            })  # fmt: skip
        if ended := reply if reply.get("verdict") else reply.get("stopped"):
            made.append({"verdict": ended["verdict"], "reason": ended["reason"]})
        found += [Compiled(**same, case=case.name, target=target, **fields) for fields in made]
    return found


def _ask(server: ForkServer, solution: Solution, case: str) -> Reply:
    """Return the kernels of one case, and the verdict with which its call ended, if any."""
    worker = Worker(server, solution, DEADLINE["cuda"])
    try:
        return worker.ask(wire.AtFullShape(case=case))
    except ServerEnded as error:
        return {"verdict": "CRASHED", "reason": str(error)}
    finally:
        worker.close()
