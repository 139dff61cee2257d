"""Every solution's kernels of the board's cases, compiled for every target; kept in `.cache/`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common.grading.fork_server import ForkServer, ServerEnded
from common.grading.known import bound, foundation
from common.grading.worker import DEADLINE, Worker
from common.paths import CACHE
from common.records.fields import SCHEMA
from common.records.lines import Compiled
from common.solutions import Solution
from common.spec import Case
from common.tools.figures import Binary

EVERY = "every"
"""The target of a fork server whose workers are told theirs; see `sandbox/backend.py`."""


class Compilation:
    """A fork server, and a process for each solution, case and target; a context manager."""

    def __init__(self, quiet: bool = True) -> None:
        """Start nothing yet; with `quiet`, drop the output of the processes."""
        self._server: ForkServer | None = None
        self._quiet = quiet
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    def __enter__(self) -> Compilation:
        """Return the compilation."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)
        if self._server:
            self._server.close()
            bound()

    def lines(
        self, todo: Sequence[tuple[Solution, Case]], targets: Sequence[str]
    ) -> Iterator[list[Compiled]]:
        """Yield the kernels of each solution, case and target, several at once and in order."""
        jobs = [(*each, target) for each in todo for target in targets]
        missing = [job for job in jobs if not self._path(*job).is_file()]
        if missing and not self._server:
            self._server = ForkServer("cpu", self._quiet, target=EVERY)
        yield from self._pool.map(lambda job: self._line(*job), jobs)

    def _line(self, solution: Solution, case: Case, target: str) -> list[Compiled]:
        path = self._path(solution, case, target)
        with contextlib.suppress(OSError, ValueError):
            return [Compiled(**each) for each in json.loads(path.read_text())]
        kernels = self._ask(solution, case, target)
        found = [
            Compiled(
                schema=SCHEMA, run="", solution=solution.name, op=solution.op, case=case.name,
                target=target, sources=solution.digest, **kernel,
            )
            for kernel in kernels
        ]  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = [{name: getattr(each, name) for name in each.__struct_fields__} for each in found]
        path.write_text(json.dumps(fields))
        return found

    def _ask(self, solution: Solution, case: Case, target: str) -> Iterator[dict[str, Any]]:
        """Yield each kernel with its figures, then the reason for which the call ended, if any."""
        assert self._server
        worker = Worker(self._server, solution, DEADLINE["cuda"])
        try:
            reply = worker.ask("launches", name=target, case=case.name)
        except ServerEnded as error:
            reply = {"verdict": "CRASHED", "reason": str(error)}
        finally:
            worker.close()
        for kernel in reply.get("kernels", []):
            files = {str(k): str(v) for k, v in kernel["files"].items()}
            figures = Binary(files, target).figures()
            yield {"kernel": str(kernel["name"]), "figures": figures, "files": files}
        if ended := reply if reply.get("verdict") else reply.get("stopped"):
            yield {"kernel": "", "verdict": ended["verdict"], "reason": ended["reason"]}

    def _path(self, solution: Solution, case: Case, target: str) -> Path:
        handle, file = solution.name.split("/")
        rests = hashlib.sha256(f"{solution.digest} {foundation()}".encode()).hexdigest()[:12]
        return CACHE / "figures" / f"{handle}-{file}-{case.name}-{target}-{rests}.json"
