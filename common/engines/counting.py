"""Count the work of the board's cases at their true shapes, without a GPU.

Each solution runs in a process of its own under Triton's interpreter, with a target's driver in
place of a GPU's (`sandbox/counted.py`). The counts are cached between runs, keyed by the sources of
the solution and of the harness.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from common import ops, wire
from common.disk_cache import DiskCache
from common.errors import ServerEnded
from common.grading.fork_server import TARGET, ForkServer
from common.grading.worker import Worker
from common.solutions import Solution
from common.spec import Case, Direction, Op
from common.verdicts import ENDED
from common.wire import Reply

THREADS = 2
"""The number of solutions that are counted concurrently."""


@dataclass(frozen=True)
class Count:
    """The counted work of one direction of one case of one solution."""

    solution: Solution
    op: Op[Any]
    case: Case
    direction: Direction
    steps: Sequence[Reply]
    """Operators and launches in order; in `backward`, the ones of forward come first."""


def count(solutions: Sequence[Solution], quiet: bool = True) -> Iterator[Count]:
    """Yield the work of each solution on every board case that it supports."""
    caches = {solution: _cache(solution) for solution in solutions}
    with contextlib.ExitStack() as stack:
        counting: dict[Solution, Future[None]] = {}
        if missing := [each for each in solutions if _missing(each, caches[each].found)]:
            server = ForkServer("cpu", quiet, target=TARGET, counted=True)
            stack.callback(server.close)
            threads = ThreadPoolExecutor(THREADS)
            stack.callback(threads.shutdown, cancel_futures=True)
            counting = {
                each: threads.submit(_count_missing, server, each, caches[each]) for each in missing
            }
        for solution in solutions:
            if solution in counting:
                counting[solution].result()
            op = ops.load(solution.op)
            for case in op.cases("board"):
                reply = caches[solution].found.get(case.name, {})
                for direction in case.directions:
                    if direction in reply:
                        yield Count(solution, op, case, direction, reply[direction])


def _cache(solution: Solution) -> DiskCache:
    return DiskCache("counted", solution.name, lambda: f"{TARGET} {solution.digest}")


def _missing(solution: Solution, found: Mapping[str, Reply]) -> list[Case]:
    """Return the board cases that are not counted yet."""
    return [case for case in ops.load(solution.op).cases("board") if case.name not in found]


def _count_missing(server: ForkServer, solution: Solution, cache: DiskCache) -> None:
    """Count the missing cases in a process of the server, and save the counts."""
    worker = Worker(server, solution)
    try:
        for case in _missing(solution, cache.found):
            with contextlib.suppress(ServerEnded):
                reply = worker.ask(wire.AtFullShape(case=case.name))
                if reply.get("verdict") not in ENDED:  # a crash may not be the case's fault
                    cache.found[case.name] = reply
    finally:
        worker.close()
    cache.save()
