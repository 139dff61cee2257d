"""The work of the board's cases at their true shapes, counted without a GPU.

A process of each solution, under Triton's interpreter with a target's driver in the place of a
GPU's, says what its calls would load, store and multiply; see `common/sandbox/counted/`. Counts are
no verdict: they say what a correct solution costs.

What was counted is kept from run to run, under the sources of the solution and all that the counts
rest on.
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
"""The solutions that are counted at once."""


@dataclass(frozen=True)
class Count:
    """The counted work of one direction of one case of one solution."""

    solution: Solution
    op: Op[Any]
    case: Case
    direction: Direction
    steps: Sequence[Reply]
    """Operators and launches in order; those of forward too in `backward`."""


def count(solutions: Sequence[Solution], quiet: bool = True) -> Iterator[Count]:
    """Yield the work of every board case that each solution supports."""
    known = {solution: _Counted(solution) for solution in solutions}
    with contextlib.ExitStack() as stack:
        counting: dict[Solution, Future[None]] = {}
        if missing := [solution for solution in solutions if known[solution].missing]:
            server = ForkServer("cpu", quiet, target=TARGET, counted=True)
            stack.callback(server.close)
            threads = ThreadPoolExecutor(THREADS)
            stack.callback(threads.shutdown, cancel_futures=True)
            counting = {each: threads.submit(known[each].ask, server) for each in missing}
        for solution in solutions:
            if solution in counting:
                counting[solution].result()
            yield from known[solution].counts()


class _Counted:
    """The replies of one solution by case."""

    def __init__(self, solution: Solution) -> None:
        """Read what an earlier run counted, if nothing changed that it rests on."""
        self._solution, self._op = solution, ops.load(solution.op)
        self._kept = DiskCache("counted", solution.name, lambda: f"{TARGET} {solution.digest}")
        self.replies: dict[str, Reply] = self._kept.found

    @property
    def missing(self) -> list[Case]:
        """The board cases that are not counted yet."""
        return [case for case in self._op.cases("board") if case.name not in self.replies]

    def ask(self, server: ForkServer) -> None:
        """Count what is missing in a process of the server, and keep it."""
        worker = Worker(server, self._solution)
        try:
            for case in self.missing:
                with contextlib.suppress(ServerEnded):
                    reply = worker.ask(wire.Count(case=case.name))
                    if reply.get("verdict") not in ENDED:  # an end says nothing of the case
                        self.replies[case.name] = reply
        finally:
            worker.close()
        self._kept.save()

    def counts(self) -> Iterator[Count]:
        """Yield the work of each case and direction that the solution supports."""
        for case in self._op.cases("board"):
            reply = self.replies.get(case.name, {})
            for direction in case.directions:
                if direction in reply:
                    yield Count(self._solution, self._op, case, direction, reply[direction])
