"""Compile the solutions' kernels of the board's cases for every target; cached in `.cache/`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import wire
from common.disk_cache import DiskCache, trim_caches
from common.errors import ServerEnded
from common.grading.fork_server import ForkServer
from common.grading.worker import DEADLINE, Worker
from common.processes import cores
from common.records.lines import SCHEMA, Compiled
from common.solutions import Solution
from common.spec import Case
from common.tools import figures
from common.verdicts import ENDED
from common.wire import Reply

Fields = Mapping[str, Any]
"""Fields of a `Compiled`: a kernel's name, files, direction and figures, or verdict and reason."""


class Compilation:
    """Runs a process for each solution, case and target; a context manager."""

    def __init__(self, quiet: bool = True) -> None:
        """Start nothing yet; with `quiet`, drop the output of the processes."""
        self._servers: dict[str, ForkServer] = {}
        self._quiet = quiet
        self._pool = ThreadPoolExecutor(cores())

    def __enter__(self) -> Compilation:
        """Return the compilation."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes, whatever their state."""
        for server in self._servers.values():
            server.interrupt()
        self._pool.shutdown(cancel_futures=True)
        for server in self._servers.values():
            server.close()
        if self._servers:
            trim_caches()

    def lines(
        self,
        todo: Mapping[Solution, Sequence[Case]],
        targets: Sequence[str],
        shown: bool = False,
    ) -> Iterator[list[Compiled]]:
        """Yield the kernels of each solution and target in order; they compile concurrently.

        A solution's cases run one after the other, so that no two compile the same kernel, and one
        process of the disassembler reads all their kernels.

        Args:
            todo: The cases of each solution.
            targets: The targets to compile all solutions for.
            shown: Recompile kernels whose files have left the cache, so that all files exist.
        """
        parts = []
        for solution, target in itertools.product(todo, targets):
            name = f"{solution.name}-{target}"
            cache = DiskCache("figures", name, functools.partial(getattr, solution, "text_digest"))
            cached = cache.found.items()
            known = {case for case, fields in cached if not shown or _files_exist(fields)}
            missing = [case for case in todo[solution] if case.name not in known]
            parts.append((solution, todo[solution], target, cache, missing))
            if missing and target not in self._servers:
                self._servers[target] = ForkServer("cpu", self._quiet, target=target, full=True)
        yield from self._pool.map(lambda part: self._lines(*part), parts)

    def _lines(
        self,
        solution: Solution,
        cases: Sequence[Case],
        target: str,
        cache: DiskCache,
        missing: Sequence[Case],
    ) -> list[Compiled]:
        """Return a line for each kernel, and a line for each call that ended early.

        The figures of each kernel are read once. The results of a process that became unusable are
        not cached.
        """
        replies = {case.name: self._ask(solution, case.name, target) for case in missing}
        kernels = {
            kernel["hash"]: kernel["files"]
            for reply in replies.values()
            for kernel in reply.get("kernels", [])
        }
        kernel_figures = figures.figures(list(kernels.values()), target)
        figures_of = dict(zip(kernels, kernel_figures, strict=True))
        fields_of = dict(cache.found)
        for case, reply in replies.items():
            fields_of[case] = list(_fields(reply, figures_of))
            if reply.get("verdict") not in ENDED:
                cache.found[case] = fields_of[case]
        if replies:
            cache.save()
        sources = solution.digest
        return [
            Compiled(
                schema=SCHEMA, run="", solution=solution.name, op=solution.op, case=case.name,
                target=target, sources=sources, **fields,
            )
            for case in cases
            for fields in fields_of[case.name]
        ]  # fmt: skip

    def _ask(self, solution: Solution, case: str, target: str) -> Reply:
        """Return the kernels of one case, and the verdict with which its call ended, if any."""
        worker = Worker(self._servers[target], solution, DEADLINE["cuda"])
        try:
            return worker.ask(wire.Launches(case=case))
        except ServerEnded as error:
            return {"verdict": "CRASHED", "reason": str(error)}
        finally:
            worker.close()


def _files_exist(kernels: Iterable[Fields]) -> bool:
    """Return whether the files of these kernels are in the cache."""
    return all(
        Path(file).is_file() for fields in kernels for file in fields.get("files", {}).values()
    )


def _fields(reply: Reply, figures_of: Mapping[str, Mapping[str, float | None]]) -> Iterator[Fields]:
    """Yield each kernel with its figures, then the reason why the call ended, if any."""
    for kernel in reply.get("kernels", []):
        yield {
            "kernel": kernel["name"], "figures": figures_of[kernel["hash"]],
            "files": kernel["files"], "direction": kernel["direction"],
        }  # fmt: skip
    if ended := reply if reply.get("verdict") else reply.get("stopped"):
        yield {"kernel": "", "verdict": ended["verdict"], "reason": ended["reason"]}
