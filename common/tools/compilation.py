"""Every solution's kernels of the board's cases, compiled for every target; kept in `.cache/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import wire
from common.errors import ServerEnded
from common.grading.fork_server import ForkServer
from common.grading.worker import DEADLINE, Worker
from common.kept import Kept, bound
from common.processes import cores
from common.records.lines import SCHEMA, Compiled
from common.solutions import Solution
from common.spec import Case
from common.tools import figures
from common.verdicts import ENDED
from common.wire import EVERY, Reply

Fields = Mapping[str, Any]
"""Of a line `Compiled`: the kernel's name, files and figures, or the verdict with its reason."""


class Compilation:
    """A fork server, and a process for each solution, case and target; a context manager."""

    def __init__(self, quiet: bool = True) -> None:
        """Start nothing yet; with `quiet`, drop the output of the processes."""
        self._server: ForkServer | None = None
        self._quiet = quiet
        self._pool = ThreadPoolExecutor(cores())

    def __enter__(self) -> Compilation:
        """Return the compilation."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes, in whatever state they are."""
        if self._server:
            self._server.interrupt()
        self._pool.shutdown(cancel_futures=True)
        if self._server:
            self._server.close()
            bound()

    def lines(
        self,
        todo: Mapping[Solution, Sequence[Case]],
        targets: Sequence[str],
        shown: bool = False,
    ) -> Iterator[list[Compiled]]:
        """Yield the kernels of each solution and target, case by case; several at once, in order.

        A solution's cases follow one another, so that none compiles what another one just does,
        and one process of the disassembler reads all their kernels.

        Args:
            todo: The cases of each solution.
            targets: The targets of all of them.
            shown: Compile again what left the cache, so that each kernel's files are there.
        """
        parts = [
            Part(solution, cases, target, shown)
            for solution, cases in todo.items()
            for target in targets
        ]
        if any(part.missing for part in parts) and not self._server:
            self._server = ForkServer("cpu", self._quiet, target=EVERY)
        yield from self._pool.map(self._lines, parts)

    def _lines(self, part: Part) -> list[Compiled]:
        for case in part.missing:
            part.replies[case.name] = self._ask(part, case)
        part.measure()
        return list(part.lines())

    def _ask(self, part: Part, case: Case) -> Reply:
        """Return the kernels of one case, and the verdict with which its call ended, if any."""
        assert self._server
        worker = Worker(self._server, part.solution, DEADLINE["cuda"])
        try:
            return worker.ask(wire.Launches(name=part.target, case=case.name))
        except ServerEnded as error:
            return {"verdict": "CRASHED", "reason": str(error)}
        finally:
            worker.close()


@dataclass
class Part:
    """The cases of one solution, compiled for one target."""

    solution: Solution
    cases: Sequence[Case]
    target: str
    shown: bool = False
    """Whether each kernel's files must be there."""
    replies: dict[str, Reply] = field(default_factory=dict)
    """The process's replies by case."""

    def __post_init__(self) -> None:
        """Read what an earlier run found."""
        name = f"{self.solution.name}-{self.target}"
        self._kept = Kept("figures", name, lambda: self.solution.digest)
        self._ended: dict[str, list[Fields]] = {}

    @property
    def missing(self) -> list[Case]:
        """The cases that no earlier run compiled."""
        return [case for case in self.cases if not self._known(case.name)]

    def _known(self, case: str) -> bool:
        """Return whether an earlier run found the figures, and the files if they are shown."""
        found = self._kept.found.get(case)
        files = (file for fields in found or () for file in fields.get("files", {}).values())
        return found is not None and (not self.shown or all(Path(file).is_file() for file in files))

    def measure(self) -> None:
        """Take the figures of the kernels of all replies, each kernel once, and keep them.

        What a process did not come to the end of is not kept.
        """
        kernels = {
            kernel["hash"]: kernel["files"]
            for reply in self.replies.values()
            for kernel in reply.get("kernels", [])
        }
        found = dict(
            zip(kernels, figures.figures(list(kernels.values()), self.target), strict=True)
        )
        for case, reply in self.replies.items():
            kept = self._ended if reply.get("verdict") in ENDED else self._kept.found
            kept[case] = list(_fields(reply, found))
        if self.replies:
            self._kept.save()

    def lines(self) -> Iterator[Compiled]:
        """Yield a line for each kernel, and one for a call that ended before its last."""
        found = self._kept.found | self._ended
        for case in self.cases:
            for fields in found[case.name]:
                yield Compiled(
                    schema=SCHEMA, run="", solution=self.solution.name, op=self.solution.op,
                    case=case.name, target=self.target, sources=self.solution.digest, **fields,
                )  # fmt: skip


def _fields(reply: Reply, figures_of: Mapping[str, Mapping[str, float | None]]) -> Iterator[Fields]:
    """Yield each kernel with its figures, then the reason for which the call ended, if any."""
    for kernel in reply.get("kernels", []):
        yield {
            "kernel": kernel["name"], "figures": figures_of[kernel["hash"]],
            "files": kernel["files"],
        }  # fmt: skip
    if ended := reply if reply.get("verdict") else reply.get("stopped"):
        yield {"kernel": "", "verdict": ended["verdict"], "reason": ended["reason"]}
