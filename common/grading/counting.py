"""Count the work of the board's cases at their true shapes, without a GPU.

Each solution runs in a process of its own under Triton's interpreter, with a target's driver in
place of a GPU's. The process reports the loads, stores and products of its calls; see
`common/sandbox/counted/`. Counts are no verdict: they describe the cost of a correct solution.

The counts are cached between runs, keyed by the sources of the solution and of the harness.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
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
    counters = {solution: _Counter(solution) for solution in solutions}
    with contextlib.ExitStack() as stack:
        counting: dict[Solution, Future[None]] = {}
        if missing := [solution for solution in solutions if counters[solution].missing]:
            server = ForkServer("cpu", quiet, target=TARGET, counted=True)
            stack.callback(server.close)
            threads = ThreadPoolExecutor(THREADS)
            stack.callback(threads.shutdown, cancel_futures=True)
            counting = {
                solution: threads.submit(counters[solution].count_missing, server)
                for solution in missing
            }
        for solution in solutions:
            if solution in counting:
                counting[solution].result()
            yield from counters[solution].counts()


class _Counter:
    """Counts one solution's work; holds its process's replies by case."""

    def __init__(self, solution: Solution) -> None:
        """Read the counts of an earlier run, unless their sources have changed."""
        self._solution, self._op = solution, ops.load(solution.op)
        self._cache = DiskCache("counted", solution.name, lambda: f"{TARGET} {solution.digest}")
        self.replies: dict[str, Reply] = self._cache.found

    @property
    def missing(self) -> list[Case]:
        """The board cases that are not counted yet."""
        return [case for case in self._op.cases("board") if case.name not in self.replies]

    def count_missing(self, server: ForkServer) -> None:
        """Count the missing cases in a process of the server, and save the counts."""
        worker = Worker(server, self._solution)
        try:
            for case in self.missing:
                with contextlib.suppress(ServerEnded):
                    reply = worker.ask(wire.AtFullShape(case=case.name))
                    if reply.get("verdict") not in ENDED:  # a crash may not be the case's fault
                        self.replies[case.name] = reply
        finally:
            worker.close()
        self._cache.save()

    def counts(self) -> Iterator[Count]:
        """Yield the work of each case and direction that the solution supports."""
        for case in self._op.cases("board"):
            reply = self.replies.get(case.name, {})
            for direction in case.directions:
                if direction in reply:
                    yield Count(self._solution, self._op, case, direction, reply[direction])
