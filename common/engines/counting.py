"""Count the work of the board's cases at their true shapes, without a GPU.

Each solution runs in a process of its own under Triton's interpreter, with a target's driver in
place of a GPU's (`sandbox/counted.py`). The counts are cached between runs, keyed by the sources of
the solution and of the harness.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from common import ops, wire
from common.disk_cache import DiskCache
from common.errors import ServerEnded
from common.grading.fork_server import TARGET, ForkServer
from common.grading.worker import Worker
from common.measure.rows import record_of
from common.records.lines import Counted, Steps
from common.solutions import Solution
from common.spec import Case, Direction, Op
from common.verdicts import ENDED
from common.wire import Reply

THREADS = 2
"""The number of solutions that are counted concurrently."""
DEADLINE = 300.0
"""The seconds of work in which a process must count a case. It is far from what a case takes, since
`counted.MOST_LANES` ends the count, and only a loop without an access reaches it."""


def counts(
    solutions: Sequence[Solution],
    run: str,
    digests: Mapping[Solution, tuple[str, str]],
) -> Iterator[Counted]:
    """Yield the work of each solution on every board case that it supports.

    Malformed counts from a solution's process are left out.

    Args:
        solutions: The solutions.
        run: The run's id.
        digests: The solution's digest and the harness's, by solution.
    """
    caches = {solution: _cache(solution) for solution in solutions}
    with contextlib.ExitStack() as stack:
        counting: dict[Solution, Future[None]] = {}
        if missing := [each for each in solutions if _missing(each, caches[each].found)]:
            server = ForkServer("cpu", target=TARGET, counted=True)
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
                    with contextlib.suppress(msgspec.ValidationError, KeyError):
                        steps = msgspec.convert(reply[direction], Steps)
                        yield _line(op, case, direction, solution, steps, run, digests[solution])


def _line(
    op: Op[Any],
    case: Case,
    direction: Direction,
    solution: Solution,
    steps: Steps,
    run: str,
    digests: tuple[str, str],
) -> Counted:
    """Return the line of one count; the least work of `backward` includes forward's."""
    row = record_of(
        op, case, direction, solution, run=run, tier="board", digests=digests, verdict=""
    )
    least = op.timed_work(case, direction)
    own = {"row": op.twin(case).name, "bytes": least.bytes, "flops": least.flops, "steps": steps}
    shared = [name for name in Counted.__struct_fields__ if name not in own]
    return Counted(**{name: getattr(row, name) for name in shared}, **own)


def _cache(solution: Solution) -> DiskCache:
    return DiskCache("counted", solution.name, lambda: f"{TARGET} {solution.digest}")


def _missing(solution: Solution, found: Mapping[str, Reply]) -> list[Case]:
    """Return the board cases that are not counted yet."""
    return [case for case in ops.load(solution.op).cases("board") if case.name not in found]


def _count_missing(server: ForkServer, solution: Solution, cache: DiskCache) -> None:
    """Count the missing cases in a process of the server, and save the counts."""
    worker = Worker(server, solution, DEADLINE)
    try:
        for case in _missing(solution, cache.found):
            with contextlib.suppress(ServerEnded):
                reply = worker.ask(wire.AtFullShape(case=case.name))
                if reply.get("verdict") not in ENDED:  # a crash may not be the case's fault
                    cache.found[case.name] = reply
    finally:
        worker.close()
    cache.save()
