"""Compile the kernels of cases that were graded on a CPU, for a GPU that need not be present.

A kernel that runs in Triton's interpreter does not necessarily compile. A second process makes each
case's call without the interpreter, that of a twin at the shape of its board case: each launch is
compiled, with its own signature, constants, alignment and options, and no kernel runs. Of that
process's verdicts only COMPILE_ERROR counts, and the refusal of a launch.

With a case of far views, a third process runs a sample of the programs of the op's large case, on
dense tensors of more than 2^31 elements that have no memory behind them. An offset that wraps there
is a note, since most kernels' offsets are in int32, and those of few users wrap.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from common import wire
from common.disk_cache import DiskCache, trim_caches
from common.draws import Draws
from common.errors import Kind, Note, ServerEnded
from common.grading.device import DeviceMemory
from common.grading.execution import configurations_of
from common.grading.fork_server import ForkServer
from common.grading.problem import Problem
from common.grading.retries import Cause, remedy_of
from common.grading.supervisor import Supervisor
from common.grading.sweep import Graded, TooLarge, Verdicts, threads
from common.grading.worker import DEADLINE, Worker
from common.printable import printable
from common.processes import cores
from common.solutions import Solution
from common.spec import Case, Direction, Op
from common.verdicts import BEFORE_LAUNCH, ENDED, Failure, Verdict, in_words
from common.wire import Reply

SEED = 0
"""The seed of all inputs, so that sizes which depend on a mask are the same in each run, and of the
configurations of autotuned kernels."""
LARGE_DEADLINE = 10.0
"""Seconds of a process's own work for the op's large case."""
AHEAD = 100
"""The most graded cases that wait for the compilation of their kernels."""
Outcome = TypeVar("Outcome", bound=Graded | TooLarge)
Fault = dict[str, Any]
"""The `verdict`, the `reason` and its `places`, see `Failure.reply`; empty for no fault. With a
`note`, a key of NOTES, the fault does not decide the verdict."""
Faults = dict[Direction, Fault]
"""The faults of the directions with a kernel that does not compile or cannot be launched."""


class Compiler(contextlib.AbstractContextManager["Compiler"]):
    """Compile solutions' kernels, in one process per solution and thread."""

    def __init__(self, device: str, quiet: bool = True) -> None:
        """Start no worker yet; the fork servers share the process of the graded solutions' one.

        If the device that grades the solutions is `cuda`, nothing is compiled here: the launches on
        that GPU compile the kernels already.
        """
        self._needed = device == "cpu"
        server = ForkServer("cpu", quiet, target=wire.STAND_IN)
        self._supervisor = Supervisor(server, DeviceMemory.of("cpu"), DEADLINE["cuda"])
        self._counted = ForkServer("cpu", quiet, target=wire.STAND_IN, counted=True)
        self._caches: dict[Solution, DiskCache] = {}
        self._refused = set[Solution]()
        """The solutions of which a kernel did not compile."""
        self._lock = threading.Lock()
        self._large = defaultdict[Solution, threading.Lock](threading.Lock)
        """Held while a solution's large case runs, which each of its far cases asks for."""
        self._pool = threads(cores())

    def __exit__(self, *_: object) -> None:
        """Save the faults of this run, and end the processes."""
        self._pool.shutdown(cancel_futures=True)
        self.resume()
        self._supervisor.server.close()
        self._counted.close()
        trim_caches()

    def submit(self, outcome: Outcome) -> Future[Outcome]:
        """Start to compile a case's kernels; return the future of the case with the faults."""
        return self._pool.submit(self._with_faults, outcome)

    def refusal(self, problem: Problem, solution: Solution) -> Verdicts:
        """Return the verdicts of a case that does not compile; {} if it has to be interpreted.

        Only the cases of a solution of which another case did not compile are compiled first.
        """
        faults, directions = Faults(), problem.case.directions
        if solution in self._refused:
            with contextlib.suppress(Failure, ServerEnded):
                faults = self._faults(problem.op, problem.case, solution)
        found = [faults.get(each, {}) for each in directions]
        if any("verdict" not in each or "note" in each for each in found):
            return {}
        names = solution.name, problem.op.name, problem.case.name
        return {each: _judged(Verdict(*names, each, "PASSED"), faults[each]) for each in directions}

    def behind(self, outcomes: Iterable[Outcome], early: bool = False) -> Iterator[Outcome]:
        """Yield each case once its kernels are compiled, while further cases are graded.

        With `early`, yield each case at once, and again if it does not compile. A case with an
        exception waits: if a kernel is its cause, the compiler's verdict is the only one.
        """
        if not self._needed:  # on a GPU a case that waited here would hold GPU memory
            yield from outcomes
            return
        waiting: deque[tuple[bool, Outcome, Future[Outcome]]] = deque()

        def compiled(most: int) -> Iterator[Outcome]:
            while waiting and (waiting[0][2].done() or len(waiting) > most):
                shown, outcome, future = waiting[0]
                if not (shown and future.result() == outcome):
                    yield future.result()
                waiting.popleft()

        try:
            for outcome in outcomes:
                verdicts = {each.verdict for each in getattr(outcome, "verdicts", {}).values()}
                at_once = early and "RUNTIME_ERROR" not in verdicts
                waiting.append((at_once, outcome, self.submit(outcome)))
                if at_once:
                    yield outcome
                yield from compiled(AHEAD)
            yield from compiled(0)
        finally:
            # `wait` would not return for a cancelled future
            wait([future for *_, future in waiting if not future.cancel()])

    def interrupt(self) -> None:
        """End the requests under way; any thread and any signal handler may call this method."""
        self._supervisor.server.interrupt()

    def resume(self) -> None:
        """Save the faults, and reload the solutions from now on: their files may have changed."""
        for cache in self._caches.values():  # without faults, which name lines that comments move
            cache.found = {case: faults for case, faults in cache.found.items() if not faults}
            cache.save()
        self._caches, self._refused = {}, set()
        self._supervisor.close()
        self._supervisor.server.resume()

    def _with_faults(self, outcome: Outcome) -> Outcome:
        """Return the case with its faults as verdicts; a case that is too large stays as it is."""
        if isinstance(outcome, TooLarge) or outcome.solution.peer or not self._needed:
            return outcome
        verdicts, faults = outcome.verdicts, Faults()
        if all(verdict.verdict in BEFORE_LAUNCH | ENDED for verdict in verdicts.values()):
            return outcome
        try:
            faults = self._faults(outcome.problem.op, outcome.case, outcome.solution)
        except (Failure, ServerEnded) as end:
            reason = f"{end.verdict}: {end}" if isinstance(end, Failure) else str(end)
            uncompiled = {"note": "NOT_COMPILED", "reason": reason}
            faults = dict.fromkeys(verdicts, uncompiled)
        judged = {each: _judged(verdicts[each], faults.get(each, {})) for each in verdicts}
        if any(each.verdict == "COMPILE_ERROR" for each in judged.values()):
            self._refused.add(outcome.solution)
        return dataclasses.replace(outcome, verdicts=judged)

    def _faults(self, op: Op[Any], case: Case, solution: Solution) -> Faults:
        """Return the faults of the solution's kernels on a case.

        Raises:
            Failure, ServerEnded: See `_asked`.
        """
        with self._lock:
            if solution not in self._caches:
                self._caches[solution] = DiskCache(
                    "verdicts", solution.name, lambda: f"{wire.STAND_IN} {solution.digest}"
                )
            known = self._caches[solution].found
        if case.name not in known:
            known[case.name] = self._asked(op, case, solution)
        faults: Faults = known[case.name]
        large = op.large
        if not large or case.layout != "far" or any("note" not in each for each in faults.values()):
            return faults
        with self._large[solution]:
            if large.name not in known:
                known[large.name] = self._wraps(large, solution)
        return {**known[large.name], **faults}

    def _wraps(self, large: Case, solution: Solution) -> Faults:
        """Return the directions in which an offset wraps in the large case; none if unknown."""
        worker, reply = Worker(self._counted, solution, LARGE_DEADLINE), Reply()
        with contextlib.suppress(ServerEnded), contextlib.closing(worker):
            reply = worker.ask(wire.AtFullShape(case=large.params))
        if reply.get("kind") != Kind.WRAPPED:
            return {}
        fault = {"note": "WRAPPED", "reason": f"at {large.name}: {reply['reason']}"}
        backward = reply["direction"] == "backward"
        return dict.fromkeys(("backward",) if backward else large.directions, fault)

    def _asked(self, op: Op[Any], case: Case, solution: Solution) -> Faults:
        """Return the faults of one case; ask again if the fork server ended.

        Raises:
            Failure: The process ended, now or in each of the latest cases, or see `_ask`.
            ServerEnded: The fork server ended too often.
        """
        supervisor = self._supervisor
        if refusal := supervisor.ends.refusal(solution):
            raise refusal
        failed, end = Counter[Cause](), None
        with supervisor.lent(solution) as worker:
            while True:
                try:
                    return _ask(op, case, worker)
                except ServerEnded as error:
                    remedy_of(error, failed)
                except Failure as failure:
                    end = failure if failure.verdict in ENDED else None  # a full disk is none
                    raise
                finally:
                    supervisor.ends.note(solution, end)


def _ask(op: Op[Any], case: Case, worker: Worker) -> Faults:
    """Return the faults of one case; instead of a twin, its board case is called if possible.

    There large tensors have no data. If another exception, which may be due to that, ends the call,
    the twin itself is called.

    Raises:
        Failure: The process ended, or a compiled kernel could not be written to the disk.
        ServerEnded: The fork server ended.
    """
    boards = [each for each in op.cases("board") if case.twin and op.twin(each).name == case.name]
    chosen = wire.ConfigurationDraw(SEED, Draws(SEED).position(case.name))
    for each in (*boards[:1], case):
        reply = worker.ask(wire.AtFullShape(case=each.params, configurations=chosen))
        tuned = in_words(configurations_of(reply))
        found = reply if "verdict" in reply else reply["caught"]
        failure = Failure.from_reply(found) if found else None
        if failure and (failure.verdict in ENDED or failure.kind is Kind.DISK):
            raise failure
        if failure and (failure.verdict == "COMPILE_ERROR" or failure.kind is Kind.LAUNCH):
            at = f"at {each.name}: " * (each is not case)
            reason = f"{at}{failure.reason}" + f" ({tuned})" * bool(tuned)
            fault = {**failure.reply, "reason": reason}
            if found is not reply:
                fault["note"] = "CAUGHT"
            backward = reply.get("direction") == "backward"
            return dict.fromkeys(("backward",) if backward else case.directions, fault)
        if found is not reply:
            break
    return {}


def _judged(verdict: Verdict, fault: Fault) -> Verdict:
    """Return a verdict after compilation: a fault replaces it, unless an earlier check failed.

    A note is added to a pass.
    """
    if note := fault.get("note"):
        notes = (*verdict.notes, Note(note, printable(fault["reason"])))
        passed = verdict.verdict == "PASSED"
        return dataclasses.replace(verdict, notes=notes) if passed else verdict
    if not fault or verdict.verdict in BEFORE_LAUNCH or verdict.kind is Kind.LAUNCH:
        return verdict
    identity = verdict.solution, verdict.op, verdict.case, verdict.direction
    return Verdict(*identity, **Failure.from_reply(fault).fields)
