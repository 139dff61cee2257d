"""Count the work of the board's cases at their true shapes, without a GPU.

Each solution runs in two processes of its own under Triton's interpreter, with a target's driver in
place of a GPU's (`sandbox/counted.py`). The counts are cached between runs, keyed by the sources of
the solution and of the harness.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from common import ops, wire
from common.disk_cache import DiskCache
from common.errors import ServerEnded
from common.grading.execution import converted
from common.grading.fork_server import ForkServer
from common.grading.worker import Worker
from common.measure.rows import record_of
from common.ops._names import of_ops
from common.records.lines import Counted, OfCase, Steps
from common.solutions import Solution
from common.spec import DIRECTIONS, Case
from common.verdicts import ENDED

THREADS = 2
"""The number of processes that count concurrently."""
DEADLINE = 300.0
"""The seconds of work in which a process must count a case. It is far from what a case takes, since
`counted.MOST_LANES` ends the count, and only a loop without an access reaches it."""


def counts(solutions: Sequence[Solution], names: Sequence[str] = ()) -> Iterator[Counted]:
    """Yield the work of each solution on every board case that it supports.

    The lines lack the run's id and the digests: the harness's takes half a second. Malformed counts
    from a solution's process are left out. For `names` of cases in place of the board's see
    `ops/_names.py`.
    """
    valid = {name: ops.load(name) for name in {solution.op for solution in solutions}}
    cases = {name: [*op.tier("board", "cuda")] for name, op in valid.items()}
    if names:
        asked = [pair for name in names for pair in of_ops([*valid.values()], name)]
        cases = {name: [case for op, case in asked if op.name == name] for name in valid}
    server = ForkServer("cpu", target=wire.STAND_IN, counted=True)
    threads = ThreadPoolExecutor(THREADS)
    try:
        due = {each: _counted(threads, server, each, cases[each.op]) for each in solutions}
        for solution, (cache, halves) in due.items():
            for half in halves:
                half.result()
            cache.save()
            op = valid[solution.op]
            for case, direction in itertools.product(cases[op.name], DIRECTIONS):
                steps = converted(cache.found.get(case.name, {}).get(direction), Steps)
                if steps is not None:
                    of = record_of(op, case, direction, solution, "board", ("", ""), verdict="")
                    shared = {name: getattr(of, name) for name in OfCase.__struct_fields__}
                    yield Counted(**shared, row=op.twin(case).name, steps=steps)
    finally:
        server.close()
        threads.shutdown(cancel_futures=True)


def _counted(
    threads: ThreadPoolExecutor, server: ForkServer, solution: Solution, cases: Sequence[Case]
) -> tuple[DiskCache, list[Future[None]]]:
    """Begin to count a solution's cases, each half in a process; return where they are kept."""
    cache = DiskCache("counted", solution.name, lambda: f"{wire.STAND_IN} {solution.digest}")
    left = [case for case in cases if case.name not in cache.found]

    def count(cases: Sequence[Case]) -> None:
        with contextlib.closing(Worker(server, solution, DEADLINE)) as worker:
            for case in cases:
                with contextlib.suppress(ServerEnded):
                    reply = worker.ask(wire.AtFullShape(case=case.params))
                    if reply.get("verdict") not in ENDED:  # a crash may not be the case's fault
                        cache.found[case.name] = reply

    return cache, [threads.submit(count, half) for half in (left[::2], left[1::2])]
