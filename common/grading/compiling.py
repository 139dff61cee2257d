"""The kernels of graded cases, compiled for a GPU that is not there.

What Triton's interpreter runs need not compile. A second process makes the same calls without the
interpreter: each launch is compiled, with its own signature, constants, alignment and options, and
none runs. Of what that process says only COMPILE_ERROR counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import torch

from common import wire
from common.disk_cache import DiskCache, bound
from common.errors import Kind, ServerEnded
from common.grading.execution import CallSlots, call_of, reserve
from common.grading.fork_server import TARGET, ForkServer
from common.grading.problem import OUTPUT, Drawn, call_tensors
from common.grading.sweep import CRASH_LIMIT, Graded, TooLarge, Verdicts, threads
from common.grading.worker import DEADLINE, Worker
from common.ops._draw import draw
from common.processes import cores
from common.solutions import Solution
from common.spec import Case, Direction, Op
from common.verdicts import BEFORE_LAUNCH, ENDED, Verdict
from common.wire import Reply

SEED = 0
"""The seed of all inputs, so that sizes which depend on a mask are the same in each run."""
FRESH = 0.0
"""What fresh memory holds in these calls, and so each result of a kernel."""
AHEAD = 100
"""Graded cases, each of one solution, whose kernels may still be compiling."""
Outcome = TypeVar("Outcome", bound=Graded | TooLarge)
Faults = Mapping[Direction, str]
"""By direction, the reason for which a kernel does not compile."""


class Compiler:
    """A process for each solution and thread, which compiles; a context manager."""

    def __init__(self, device: str, quiet: bool = True) -> None:
        """Start nothing yet.

        Args:
            device: Where solutions are graded. On `cuda` nothing is compiled here: that GPU's own
                compilation decides.
            quiet: Drop the output of the processes.
        """
        self._needed, self._quiet = device == "cpu", quiet
        self._server: ForkServer | None = None
        self._interrupted = False
        self._workers: list[Worker] = []
        self._free: dict[Solution, list[Worker]] = defaultdict(list)
        self._known: dict[Solution, DiskCache] = {}
        self._lock = threading.Lock()
        self._pool = threads(cores())

    def __enter__(self) -> Compiler:
        """Return the compiler."""
        return self

    def __exit__(self, *_: object) -> None:
        """Keep what is known, and end the processes."""
        self._pool.shutdown(cancel_futures=True)
        self.renew()
        if self._server:
            self._server.close()
            bound()

    def submit(self, each: Outcome) -> Future[Outcome]:
        """Return the case as it will be once its kernels are compiled."""
        return self._pool.submit(self._compiled, each)

    def behind(self, found: Iterable[Graded | TooLarge]) -> Iterator[Graded | TooLarge]:
        """Yield each case once its kernels are compiled, while further ones are graded."""
        if not self._needed:  # none waits for another: on a GPU each holds memory
            yield from found
            return
        waiting: deque[Future[Graded | TooLarge]] = deque()
        for graded in found:
            waiting.append(self.submit(graded))
            while waiting and (waiting[0].done() or len(waiting) > AHEAD):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def prepare(self, solutions: Iterable[Solution]) -> None:
        """Start the fork server now, unless all that is known of the solutions was kept."""
        with self._lock:
            if self._needed and not all(self._kept(solution).found for solution in solutions):
                self._started()

    def interrupt(self) -> None:
        """End what is under way; any thread and any signal handler may call it."""
        self._interrupted = True
        if self._server:
            self._server.interrupt()

    def renew(self) -> None:
        """Keep what is known, and load the solutions anew from now on: they may have changed."""
        for each in self._known.values():
            each.save()
        for worker in self._workers:
            worker.close()
        self._known, self._workers = {}, []
        self._free.clear()
        self._interrupted = False
        if self._server:
            self._server.resume()

    def _compiled(self, each: Outcome) -> Outcome:
        """Return the case with what does not compile; one that is too large has no kernels."""
        if isinstance(each, TooLarge) or each.solution.peer or not self._needed:
            return each
        found = each.verdicts
        if all(verdict.verdict in BEFORE_LAUNCH | ENDED for verdict in found.values()):
            return each
        try:
            found = compiled(found, self.faults(each.problem.op, each.case, each.solution))
        except Unknown as unknown:
            found = {
                direction: _noted(verdict, str(unknown)) for direction, verdict in found.items()
            }
        return dataclasses.replace(each, verdicts=found)

    def faults(self, op: Op[Any], case: Case, solution: Solution) -> Faults:
        """Return what does not compile of the solution's kernels on a case.

        Raises:
            Unknown: The process did not come to its end.
        """
        with self._lock:
            found = self._kept(solution).found
        if case.name not in found:
            with self._worker(solution) as worker:
                found[case.name] = _asked(op, case, worker)
        return cast(Faults, found[case.name])

    def _kept(self, solution: Solution) -> DiskCache:
        if solution not in self._known:
            self._known[solution] = DiskCache(
                "verdicts", solution.name, lambda: f"{TARGET} {solution.digest}"
            )
        return self._known[solution]

    def _started(self) -> ForkServer:
        if self._server is None:
            self._server = ForkServer("cpu", self._quiet, target=TARGET)
        if self._interrupted:
            self._server.interrupt()
        return self._server

    @contextlib.contextmanager
    def _worker(self, solution: Solution) -> Iterator[Worker]:
        """Lend a free worker: several cases of a solution may be compiled at once."""
        with self._lock:
            server = self._started()
            if not (free := self._free[solution]):
                free.append(Worker(server, solution, DEADLINE["cuda"]))
                self._workers += free
            worker = free.pop()
        try:
            yield worker
        finally:
            with self._lock:
                self._free[solution].append(worker)


class Unknown(Exception):
    """A process came to no end of its kernels; in words."""


def _asked(op: Op[Any], case: Case, worker: Worker) -> Faults:
    """Return the faults of one case; ask again where the fork server ended, or has grown.

    Raises:
        Unknown: The process, or its fork server, ended.
    """
    if worker.crashes >= CRASH_LIMIT:
        raise Unknown(f"not run again after {CRASH_LIMIT} ends of its process")
    try:
        return _ask(op, case, worker)
    except ServerEnded:
        worker.refresh()
    try:
        return _ask(op, case, worker)
    except ServerEnded as error:
        raise Unknown(str(error)) from None


def _ask(op: Op[Any], case: Case, worker: Worker) -> Faults:
    """Return the faults of one case.

    Raises:
        Unknown: The process ended, or the disk takes no compiled kernel.
        ServerEnded: Its fork server did.
    """
    drawn = draw(op, case, SEED, "cpu")
    slots = stage(op, case, drawn, worker)
    call = call_of(op, drawn[0], slots.inputs)
    place = slots.results[OUTPUT]
    forward = _reply(worker, wire.Forward(call=call, result=place, poison=FRESH))
    if reason := _fault(forward):
        return dict.fromkeys(case.directions, reason)
    if not ("backward" in case.directions and forward.get("differentiable")):
        return {}
    grad_output = slots.inputs["upstream"]
    places = {name: slots.results[name] for name in op.differentiable}
    backward = _reply(worker, wire.Backward(grad_output=grad_output, results=places))
    return {"backward": reason} if (reason := _fault(backward)) else {}


def _reply(worker: Worker, request: wire.Request) -> Reply:
    reply = worker.ask(request)
    if reply.get("verdict") in ENDED:
        raise Unknown(f"{reply['verdict']}: {reply['reason']}")
    if Kind(reply.get("kind", "")) is Kind.DISK:
        raise Unknown(str(reply.get("reason")))
    return reply


def stage(op: Op[Any], case: Case, drawn: Drawn, worker: Worker) -> CallSlots:
    """Stage a call's inputs into memory shared with the process, with room for the results."""
    arguments, grad_output = drawn
    inputs = call_tensors(arguments, grad_output)
    shapes = {name: arguments[name].shape for name in op.differentiable}
    results = {
        name: torch.empty(shape, dtype=grad_output.dtype, device="meta")
        for name, shape in {**shapes, OUTPUT: op.output(case)}.items()
    }
    arena, (slots,) = reserve(worker, [inputs], [results])
    for name, tensor in inputs.items():
        arena.put(slots.inputs[name], tensor)
    return slots


def _fault(reply: Reply) -> str:
    """Return the reason of a COMPILE_ERROR."""
    return str(reply.get("reason")) if reply.get("verdict") == "COMPILE_ERROR" else ""


def compiled(verdicts: Verdicts, faults: Faults) -> Verdicts:
    """Return the verdicts with the faults among them, where there is no earlier cause."""
    return {
        direction: _with(found, faults[direction]) if direction in faults else found
        for direction, found in verdicts.items()
    }


def _noted(found: Verdict, reason: str) -> Verdict:
    return dataclasses.replace(found, notes=(*found.notes, f"not compiled for {TARGET}: {reason}"))


def _with(found: Verdict, reason: str) -> Verdict:
    if found.verdict in BEFORE_LAUNCH:
        return found
    return Verdict(found.solution, found.op, found.case, found.direction, "COMPILE_ERROR", reason)
