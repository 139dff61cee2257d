"""The verdict of one solution on one case, in each direction.

`Run` carries a plan out (`call_plan.py`): it has the solution's process asked (`execution.py`), and
collects findings from its replies, from the shared memory and from the values (`compare.py`). The
earliest cause is the verdict. The oracle's results never leave the harness's process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec
import torch

from common.errors import Kind
from common.grading.call_plan import Action, Attempt, Round, RoundCondition, plan_of
from common.grading.compare import Finding, altered, compare, differing, label, wrong_values
from common.grading.execution import Execution
from common.grading.problem import OUTPUT, Problem
from common.grading.worker import NO_REPLY, Worker
from common.spec import DIRECTIONS, Direction
from common.verdicts import ENDED, FINE, VERDICTS, Verdict
from common.wire import Reply, Result

ORDER = list(VERDICTS)
Described = dict[str, Result | None]
"""Results by name as a reply describes them; None for a gradient that autograd does not give."""
LONGEST_REPEATS = 5.0
"""Seconds after which a case is not answered again; calls of 20 ms and less reach all repeats."""
FEW = 1 << 14
"""The most elements of a direction's results that are kept with its verdict."""
SAME = "the same inputs, of calls that live at the same time"
NO_GRADIENT = Finding("UNSUPPORTED", "the output has no grad_fn")
PROGRAMS = {"OUT_OF_BOUNDS": "the program", "NONDETERMINISTIC": "programs whose order matters"}
"""The verdicts that are of certain programs, which Triton's interpreter alone can name."""


def grade_case(
    problem: Problem, worker: Worker, repeats: int = 0, keep: bool = False
) -> dict[Direction, Verdict]:
    """Return the verdicts of the worker's solution on a problem.

    The solution is asked what its plan says; where nothing is wrong after that, it answers up to
    `repeats` times more. With `keep`, a verdict of wrong values has them with it, if they are few.
    """
    run = PlanRun(problem, worker)
    for each in run.plan.rounds:
        run.carry_out(each)
    start = time.monotonic()
    for _ in range(repeats):
        run.repeat()
        if time.monotonic() - start > LONGEST_REPEATS:
            break
    return {direction: run.verdict(direction, keep) for direction in run.directions}


class PlanRun:
    """One plan under way: what was asked, and what was found."""

    def __init__(self, problem: Problem, worker: Worker) -> None:
        """Draw the plan, and reserve the memory that it takes."""
        self.problem, self.worker = problem, worker
        self.plan = plan_of(problem, worker.solution)
        self.execution = Execution(problem, worker, self.plan)
        self.directions = [direction for direction in DIRECTIONS if self.execution.names(direction)]
        self.findings: dict[Direction, list[Finding]] = {"forward": [], "backward": []}
        self.notes: list[str] = []
        """Lines on what decides nothing."""
        self._asked: list[Attempt] = []
        """Those in the usual mode."""
        self._alive: list[Attempt] = []
        """Those whose outputs live: of the round's calls."""
        self._ready: set[Attempt] = set()
        """Those whose output can be differentiated."""
        self._errors: dict[Direction, list[float | None]] = {}
        """The error of each result that was compared, in units of eager's own."""

    # --- steps ------------------------------------------------------------------------------------

    def carry_out(self, steps: Round) -> None:
        """Take the steps of a round, if its condition holds, until a request fails.

        A failure ends the round, since the next process would not know the earlier calls.
        """
        if not self._holds(steps.condition):
            return
        self._alive = []
        for do, attempt in steps.steps:
            if not self._take(do, attempt):
                return

    def _holds(self, condition: RoundCondition) -> bool:
        match condition:
            case RoundCondition.ALWAYS:
                return True
            case RoundCondition.ANSWERED:
                return self.execution.answered["forward"].issuperset(self._asked)
            case RoundCondition.FORWARD_RIGHT:
                ended = ENDED & {finding.verdict for finding in self.findings["backward"]}
                return not self.findings["forward"] and not ended

    def _take(self, do: Action, attempt: Attempt) -> bool:
        """Take a step; return False where a request failed."""
        match do:
            case Action.FORWARD:
                return self._forward(attempt)
            case Action.BACKWARD:
                return attempt not in self._ready or self._ask("backward", attempt)[0] is not None
            case Action.OUTPUT:
                self._look_again(attempt, "forward")
            case Action.GRADIENTS:
                self._look_again(attempt, "backward")
            case Action.COMPARE:
                (self._compare_alone if attempt.further else self._compare)(attempt)
        return True

    def _forward(self, attempt: Attempt) -> bool:
        if not attempt.further:
            self._asked.append(attempt)
        results, failure = self._ask("forward", attempt, alive=self._alive)
        if results is None:
            return False
        self._alive.append(attempt)
        if self._has_backward(attempt, results[OUTPUT], failure):
            self._ready.add(attempt)
        return True

    def _has_backward(
        self, attempt: Attempt, output: Result | None, failure: Finding | None
    ) -> bool:
        """Return whether the output can be differentiated; if not, add that to the findings."""
        findings = self.findings["backward"]
        if not self.execution.names("backward", attempt) or (attempt.further and findings):
            return False
        if failure and failure.verdict in ("INCORRECT_SHAPE", "INCORRECT_DTYPE"):
            findings.append(failure)
            return False
        differentiable = output is not None and output.differentiable
        if not differentiable:
            reason = f"{NO_GRADIENT.reason} {attempt.mode.text}"
            findings.append(
                Finding("INCORRECT_NUMERICAL", reason) if attempt.further else NO_GRADIENT
            )
        return differentiable

    def _look_again(self, attempt: Attempt, direction: Direction) -> None:
        """Find a result of one call that changed when the next was made."""
        if attempt not in self.execution.answered[direction]:
            return
        for name in self.execution.names(direction, attempt):
            later = self.execution.later(name, attempt)
            if isinstance(later, dict):
                self.findings[direction].append(_failure_in_words(later))
            else:
                result = self.execution.result(name, attempt)
                self.findings[direction] += altered(name, result, later)

    def repeat(self) -> None:
        """Ask for the latest attempt once more, in its own place, if nothing is wrong so far."""
        first, latest = self.plan.first, self.plan.latest
        for direction in self.directions:
            findings = self.findings[direction]
            if findings or self._ask(direction, latest)[1]:
                return
            for name in self.execution.names(direction):
                before, now = (self.execution.result(name, each) for each in (first, latest))
                findings += differing(name, before, now)

    # --- replies ----------------------------------------------------------------------------------

    def _ask(
        self, direction: Direction, attempt: Attempt, **how: Any
    ) -> tuple[Described | None, Finding | None]:
        """Return the results of one request, and the finding that it leads to before comparisons.

        There are no results where the request failed.
        Where forward fails, backward has the same finding. A further mode's forward counts for
        itself.
        """
        forward = direction == "forward"
        ask = self.execution.forward if forward else self.execution.backward
        reply = ask(attempt, **how)
        results = _described(reply, direction, self.execution.names(direction, attempt))
        failure = _failure_in_words(reply) if results is None else self._failure(results)
        if failure and attempt.further:
            failure = failure._replace(reason=f"{failure.reason}, {attempt.mode.text}")
        if failure:
            self._add(direction, failure, attempt)
            if forward and results is None and not attempt.further:
                self.findings["backward"].append(failure)
        return results, failure

    def _add(self, direction: Direction, failure: Finding, attempt: Attempt) -> None:
        """Add a failure to the findings; what a further mode leaves unsupported is noted alone.

        Coverage must not depend on the draw. A pool of threads that writes slices is no fault.
        """
        noted = failure.verdict == "UNSUPPORTED" or failure.kind is Kind.INFERENCE_THREAD
        if attempt.further and noted:
            self.notes.append(failure.reason)
        else:
            self.findings[direction].append(failure)

    def _failure(self, results: Described) -> Finding | None:
        """Return the first failure in the memory, or in a result's shape and dtype."""
        if overrun := self.execution.memory.overrun():
            return Finding("OUT_OF_BOUNDS", overrun)
        if changed := self.execution.memory.changed():
            return Finding("MUTATED_INPUT", f"{changed} changed")
        for name, result in results.items():
            if result is None:
                return Finding("INCORRECT_NUMERICAL", f"{label(name)} is None, not even zeros")
            size, dtype = list(self.problem.shapes[name]), self.problem.case.dtype
            if result.shape != size:
                reason = f"{label(name)} has shape {result.shape}, expected {size}"
                return Finding("INCORRECT_SHAPE", reason)
            if result.dtype != dtype:
                reason = f"{label(name)} is {result.dtype}, expected {dtype}"
                return Finding("INCORRECT_DTYPE", reason)
        return None

    # --- values -----------------------------------------------------------------------------------

    def _compare(self, first: Attempt) -> None:
        """Compare the results of each direction, if every call that was asked has them."""
        plan, result = self.plan, self.execution.result
        several = [
            attempt for attempt in (first, plan.latest, plan.other) if attempt in self._asked
        ]
        concurrent = [each for each in plan.concurrent if each in self._asked]
        for direction in self.directions:
            findings, answered = self.findings[direction], self.execution.answered[direction]
            if not answered.issuperset(self._asked):
                if answered and {finding.verdict for finding in findings} == {"UNSUPPORTED"}:
                    findings.append(Finding("NONDETERMINISTIC", "unsupported in one run of two"))
                continue
            self._errors[direction] = []
            for name in self.execution.names(direction):
                results = [result(name, attempt) for attempt in several if attempt]
                here, error = compare(self.problem, name, *results)
                for each in concurrent:
                    here = here or differing(name, results[1], result(name, each), SAME)
                findings += here
                self._errors[direction].append(error)

    def _compare_alone(self, attempt: Attempt) -> None:
        """Compare the results of a further mode, where nothing else is wrong with a direction."""
        for direction in self.directions:
            findings = self.findings[direction]
            if findings or attempt not in self.execution.answered[direction]:
                continue
            for name in self.execution.names(direction, attempt):
                result = self.execution.result(name, attempt)
                findings += wrong_values(self.problem, name, result, attempt.mode.text)

    def _kept(self, direction: Direction) -> dict[str, torch.Tensor]:
        """Return the first call's results in host memory, if there are any and they are small."""
        first, names = self.plan.first, self.execution.names(direction)
        count = sum(self.problem.shapes[name].numel() for name in names)
        if first not in self.execution.answered[direction] or count > FEW:
            return {}
        return {name: self.execution.result(name, first).cpu() for name in names}

    # --- the verdict ------------------------------------------------------------------------------

    def verdict(self, direction: Direction, keep: bool = False) -> Verdict:
        """Return the earliest cause as the verdict; a failure comes before `UNSUPPORTED`.

        Only compared results pass, whatever the replies said.
        """
        errors = [each for each in self._errors.get(direction, []) if each is not None]
        nothing = Finding("CRASHED", "no result was compared")
        without = Finding("PASSED", "") if self._errors.get(direction) else nothing
        finding = min(
            self.findings[direction] or [without],
            key=lambda found: (found.verdict in FINE, ORDER.index(found.verdict)),
        )
        passed = finding.verdict == "PASSED"
        kept = keep and finding.verdict == "INCORRECT_NUMERICAL"
        return Verdict(
            solution=self.worker.solution.name,
            op=self.problem.op.name,
            case=self.problem.case.name,
            direction=direction,
            verdict=finding.verdict,
            reason=finding.reason + self._programs(direction, finding),
            kind=finding.kind,
            error=max(errors, default=None) if passed else None,
            notes=tuple(self.notes) if passed else (),
            picture=finding.picture,
            plan="" if finding.verdict in FINE else str(self.plan),
            results=self._kept(direction) if kept else {},
        )

    def _programs(self, direction: Direction, found: Finding) -> str:
        """Return the two programs that conflict where results differ, to follow the reason.

        On a GPU, return the command that names the programs that a failure is of.
        """
        illegal = found.kind is Kind.ILLEGAL_ACCESS
        named = PROGRAMS.get("OUT_OF_BOUNDS" if illegal else found.verdict)
        solution = self.worker.solution
        if named and self.problem.device == "cuda" and not solution.peer:
            return f" (nox -s check -- {solution.handle} --device cpu names {named})"
        if found.verdict != "NONDETERMINISTIC":
            return ""
        conflict = self.execution.conflict(self.plan.latest, direction)
        return f": {conflict}" if conflict else ""


# --- the form of a reply --------------------------------------------------------------------------


def _described(reply: Reply, direction: Direction, names: Iterable[str]) -> Described | None:
    """Return each result that was asked for as the reply describes it; None for a failure.

    Only a comparison can pass: a process that says `PASSED` of itself sent no reply.
    """
    try:
        found = msgspec.convert({OUTPUT: reply} if direction == "forward" else reply, Described)
    except msgspec.ValidationError:
        return None
    return found if found.keys() == set(names) else None


def _failure_in_words(reply: Reply) -> Finding:
    if reply.get("verdict") in ORDER[1:] and "reason" in reply:
        return Finding(reply["verdict"], reply["reason"], kind=Kind(reply.get("kind", "")))
    return Finding("CRASHED", NO_REPLY)
