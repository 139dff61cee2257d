"""The kernels of graded cases, compiled for a GPU that is not there.

What Triton's interpreter runs need not compile. A second process makes the same calls without the
interpreter: each launch is compiled, with its own signature, constants, alignment and options, and
none runs. Of what that process says only COMPILE_ERROR counts.

What is known of a solution is kept from run to run, under its sources and all that the calls rest
on. Triton's own cache keeps what it compiled.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from common.digest import digest
from common.grading.calls import CallSlots, call_json, call_tensors, reserve, result_slots
from common.grading.fork_server import ForkServer, ServerEnded
from common.grading.problem import OUTPUT, Problem
from common.grading.worker import Worker
from common.paths import CACHE, COMMON
from common.solutions import Solution
from common.spec import Direction
from common.verdicts import Verdict
from common.wire import Reply

TARGET = "sm_90"
"""An H100 or H200."""
FRESH = 0.0
"""What fresh memory holds in these calls, and so each result of a kernel."""
ENDS = {"CRASHED", "TIMEOUT", "TAMPERED"}
"""Verdicts of a process that did not come to its end; nothing is known of its kernels."""

Faults = Mapping[Direction, str]
"""By direction, the reason for which a kernel does not compile."""


class Compiler:
    """A process for each solution and thread, which compiles; a context manager."""

    def __init__(self, quiet: bool = True, deadline: float | None = None) -> None:
        """Start nothing yet; see `Sweep`."""
        self._quiet, self._deadline = quiet, deadline
        self._server: ForkServer | None = None
        self._workers: dict[tuple[Solution, int], Worker] = {}
        self._known: dict[Solution, _Known] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Compiler:
        """Return the compiler."""
        return self

    def __exit__(self, *_: object) -> None:
        """Keep what is known, and end the processes."""
        for known in self._known.values():
            known.save()
        if self._server:
            self._server.close()
        for worker in self._workers.values():
            worker.close()

    def faults(self, problem: Problem, solution: Solution) -> Faults:
        """Return what does not compile of the solution's kernels on a case."""
        with self._lock:
            known = self._known.setdefault(solution, _Known(solution))
        case = problem.case.name
        if case not in known.faults:
            found = _ask(problem, self._worker(solution))
            if found is None:
                return {}
            known.faults[case] = found
        return known.faults[case]

    def _worker(self, solution: Solution) -> Worker:
        """Return this thread's worker: several cases of a solution may be graded at once."""
        key = solution, threading.get_ident()
        with self._lock:
            if self._server is None:
                self._server = ForkServer("cpu", self._quiet, TARGET)
            if key not in self._workers:
                self._workers[key] = Worker(self._server, solution, self._deadline)
            return self._workers[key]


def _ask(problem: Problem, worker: Worker) -> Faults | None:
    """Return the faults of one case; None where the process ended."""
    try:
        return _asked(problem, worker)
    except ServerEnded:
        return None


def _asked(problem: Problem, worker: Worker) -> Faults | None:
    slots = _laid(problem, worker)
    call = call_json(problem.op, problem.arguments, slots.inputs)
    place = slots.results[OUTPUT, 0].json()
    forward = worker.ask("forward", call=call, result=place, poison=FRESH)
    if forward.get("verdict") in ENDS:
        return None
    if reason := _fault(forward):
        return dict.fromkeys(problem.case.directions, reason)
    names = [name for name in problem.op.differentiable if name in problem.truth]
    if not (names and forward.get("differentiable")):
        return {}
    upstream = slots.inputs["upstream"].json()
    places = {name: slots.results[name, 0].json() for name in names}
    backward = worker.ask("backward", upstream=upstream, results=places)
    if backward.get("verdict") in ENDS:
        return None
    return {"backward": reason} if (reason := _fault(backward)) else {}


def _laid(problem: Problem, worker: Worker) -> CallSlots:
    """Lay the case's inputs into memory shared with the process, with room for the results."""
    inputs = call_tensors(problem.arguments, problem.upstream)
    arena, (slots,) = reserve(worker, [inputs], [result_slots(problem, problem.truth)])
    for name, tensor in inputs.items():
        arena.put(slots.inputs[name], tensor)
    return slots


def _fault(reply: Reply) -> str:
    """Return the reason of a COMPILE_ERROR, with the target in it."""
    if reply.get("verdict") != "COMPILE_ERROR":
        return ""
    return str(reply.get("reason")).replace("not compile", f"not compile for {TARGET}", 1)


def compiled(verdicts: Mapping[Direction, Verdict], faults: Faults) -> dict[Direction, Verdict]:
    """Return the verdicts with the faults among them, where there is no earlier cause."""
    return {
        direction: _with(found, faults[direction]) if direction in faults else found
        for direction, found in verdicts.items()
    }


def _with(found: Verdict, reason: str) -> Verdict:
    if found.verdict in ("UNSUPPORTED", "COMPILE_ERROR"):
        return found
    return Verdict(found.solution, found.op, found.case, found.direction, "COMPILE_ERROR", reason)


class _Known:
    """The faults of one solution by case, in a file of the cache."""

    def __init__(self, solution: Solution) -> None:
        """Read what earlier runs found, if nothing changed that it rests on."""
        handle, file = solution.name.split("/")
        self._path = CACHE / "compiled" / f"{handle}-{file}.json"
        self._key = f"{solution.digest} {_foundation()}"
        self.faults: dict[str, Faults] = {}
        try:
            kept = json.loads(self._path.read_text())
            self.faults = kept["faults"] if kept["key"] == self._key else {}
        except (OSError, ValueError, KeyError, TypeError):
            pass  # there is none yet, or another program wrote it

    def save(self) -> None:
        """Write what is known; a solution that never loads has nothing to keep."""
        if not self.faults:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = Path(f"{self._path}.{os.getpid()}")
        written.write_text(json.dumps({"key": self._key, "faults": self.faults}))
        written.replace(self._path)


@functools.cache
def _foundation() -> str:
    """Return what faults rest on beside the solution: ops, the processes' code, and versions."""
    folders = (COMMON / "ops", COMMON / "sandbox", COMMON / "grading")
    sources: Iterable[Path] = (file for folder in folders for file in folder.rglob("*.py"))
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "triton")]
    return " ".join([TARGET, digest(sources), *versions])
