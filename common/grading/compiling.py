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
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from common.errors import NOT_WRITTEN
from common.grading.calls import CallSlots, Drawn, call_json, call_tensors, reserve
from common.grading.fork_server import TARGET, ForkServer, ServerEnded
from common.grading.grade import grade
from common.grading.graded import TooLarge
from common.grading.known import Faults, bound, known
from common.grading.pools import threads
from common.grading.problem import OUTPUT, Problem
from common.grading.second_try import Verdicts
from common.grading.worker import DEADLINE, Worker
from common.kept import Kept
from common.ops._draw import draw
from common.processes import cores
from common.solutions import Solution
from common.spec import Case, Op
from common.verdicts import ENDED, Verdict
from common.wire import Reply

if TYPE_CHECKING:
    from common.grading.graded import Graded

SEED = 0
"""The seed of all inputs, so that sizes which depend on a mask are the same in each run."""
FRESH = 0.0
"""What fresh memory holds in these calls, and so each result of a kernel."""
AHEAD = 100
"""Graded cases, each of one solution, whose kernels may still be compiling."""
Outcome = TypeVar("Outcome", bound="Graded | TooLarge")
EARLIER = {"UNSUPPORTED", "COMPILE_ERROR"}
"""Verdicts that stay, whatever the kernels do."""


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
        self._known: dict[Solution, Kept] = {}
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

    def grade(
        self, problem: Problem, worker: Worker, repeats: int = 0, keep: bool = False
    ) -> Verdicts:
        """Return the verdicts, with what does not compile among them; see `grade.grade`."""
        return self._judged(grade(problem, worker, repeats, keep), problem, worker.solution)

    def submit(self, graded: Graded) -> Future[Graded]:
        """Return the case as it will be once its kernels are compiled."""
        return self._pool.submit(self._compiled, graded)

    def behind(self, found: Iterable[Graded | TooLarge]) -> Iterator[Graded | TooLarge]:
        """Yield each case once its kernels are compiled, while further ones are graded."""
        waiting: deque[Future[Graded | TooLarge]] = deque()
        for each in found:
            waiting.append(self._pool.submit(self._compiled, each))
            while waiting and (waiting[0].done() or len(waiting) > AHEAD):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def prepare(self, solutions: Iterable[Solution]) -> None:
        """Start the fork server now, unless all that is known of the solutions was kept."""
        with self._lock:
            if self._needed and not all(self._kept(each).found for each in solutions):
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
        if isinstance(each, TooLarge):
            return each
        verdicts = self._judged(each.verdicts, each.problem, each.solution)
        return dataclasses.replace(each, verdicts=verdicts)

    def _judged(self, found: Verdicts, problem: Problem, solution: Solution) -> Verdicts:
        decided = all(each.verdict in EARLIER | ENDED for each in found.values())
        if decided or solution.peer or not self._needed:
            return found
        try:
            return compiled(found, self.faults(problem.op, problem.case, solution))
        except Unknown as unknown:
            return {direction: _noted(each, str(unknown)) for direction, each in found.items()}

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

    def _kept(self, solution: Solution) -> Kept:
        if solution not in self._known:
            self._known[solution] = known(solution, TARGET)
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
    slots = laid(op, case, drawn, worker)
    call = call_json(op, drawn[0], slots.inputs)
    place = slots.results[OUTPUT, 0].json()
    forward = _reply(worker, "forward", call=call, result=place, poison=FRESH)
    if reason := _fault(forward):
        return dict.fromkeys(case.directions, reason)
    if not ("backward" in case.directions and forward.get("differentiable")):
        return {}
    upstream = slots.inputs["upstream"].json()
    places = {name: slots.results[name, 0].json() for name in op.differentiable}
    backward = _reply(worker, "backward", upstream=upstream, results=places)
    return {"backward": reason} if (reason := _fault(backward)) else {}


def _reply(worker: Worker, request: str, **arguments: Any) -> Reply:
    reply = worker.ask(request, **arguments)
    if reply.get("verdict") in ENDED:
        raise Unknown(f"{reply['verdict']}: {reply['reason']}")
    if NOT_WRITTEN in (reason := str(reply.get("reason"))):
        raise Unknown(reason)
    return reply


def laid(op: Op[Any], case: Case, drawn: Drawn, worker: Worker) -> CallSlots:
    """Lay a call's inputs into memory shared with the process, with room for the results."""
    arguments, upstream = drawn
    inputs = call_tensors(arguments, upstream)
    shapes = {name: arguments[name].shape for name in op.differentiable}
    results = {
        (name, 0): torch.empty(shape, dtype=upstream.dtype, device="meta")
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
    if found.verdict in EARLIER:
        return found
    return Verdict(found.solution, found.op, found.case, found.direction, "COMPILE_ERROR", reason)
