"""The verdict of one solution on one case, in each direction.

`PlanRun` carries out a plan (`call_plan.py`): it sends requests to the solution's process
(`execution.py`) and collects findings from the replies, the shared memory and the values
(`compare.py`). The first finding in the order of VERDICTS is the verdict, to which `remarks.py`
adds what explains it. The oracle's results never leave the harness's process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from common import wire
from common.arena import integers
from common.errors import Kind, Note
from common.grading import call_plan, remarks
from common.grading.call_plan import Action, Attempt, Plan, Round, RoundCondition
from common.grading.compare import Finding, compare, compare_other, differing, label, wrong_values
from common.grading.execution import Described, Execution
from common.grading.mismatch import listed
from common.grading.problem import Problem
from common.grading.worker import Worker
from common.source import Reason
from common.spec import DIRECTIONS, Direction, is_output
from common.verdicts import ENDED, FINE, VERDICTS, Failure, Verdict, merged

ORDER = list(VERDICTS)
LONGEST_REPEATS = 5.0
"""Seconds after which a case is not repeated; calls of 20 ms or less get all repeats."""
MOST_ELEMENTS = 1 << 14
"""The most elements of a direction's results that are kept with its verdict."""
SAME = "the same inputs, in concurrent calls"
OTHER = "of a call on other inputs"
AS_IF_SHARED = "as if both shared memory"
NO_GRAD_FN = "the output has no grad_fn"
NO_GRADIENT = Finding("UNSUPPORTED", f"{NO_GRAD_FN}: return it from a torch.autograd.Function")


def grade_case(
    problem: Problem, worker: Worker, repeats: int = 0, keep: bool = False, thorough: bool = False
) -> dict[Direction, Verdict]:
    """Return the verdicts of the worker's solution on a problem.

    The worker answers the plan's calls and, if nothing is wrong, up to `repeats` repetitions of the
    latest call. With `keep`, a verdict of wrong values includes the results if they are small. With
    `thorough`, every change of inputs, mode and configuration follows, until a call fails.
    """
    ran: list[dict[Direction, Verdict]] = []
    plans = [call_plan.plan_of(problem, worker.solution)]
    for plan in plans:
        run = PlanRun(problem, worker, plan)
        for plan_round in plan.rounds:
            run.carry_out(plan_round)
        start = time.monotonic()
        for _ in range(repeats):
            run.repeat()
            if time.monotonic() - start > LONGEST_REPEATS:
                break
        ran.append(run.verdicts(keep))
        found = {verdict.verdict for verdict in ran[-1].values()}
        if "PASSED" not in found or not found <= FINE:
            return ran[-1]
        if thorough and len(plans) == 1:
            tuned = merged(verdict.configurations for verdict in ran[-1].values())
            most = max((kernel.count for kernel in tuned.values()), default=0)
            plans += call_plan.further_plans(problem, worker.solution, most)
    every = {each: merged(one[each].configurations for one in ran) for each in ran[-1]}
    return {each: replace(last, configurations=every[each]) for each, last in ran[-1].items()}


class PlanRun:
    """A plan in progress: the calls made so far, and their findings."""

    def __init__(self, problem: Problem, worker: Worker, plan: Plan) -> None:
        """Reserve the plan's memory."""
        self.problem, self.worker, self.plan = problem, worker, plan
        self.execution = Execution(problem, worker, plan)
        self._recheck = remarks.Recheck(self.execution, tuple(worker.cases))
        worker.cases.append(problem.case.name)
        self.directions = [direction for direction in DIRECTIONS if self.execution.names(direction)]
        self.findings: dict[Direction, list[Finding]] = {"forward": [], "backward": []}
        self.notes: dict[Direction, list[Note]] = {"forward": [], "backward": []}
        self._requested: list[Attempt] = []
        """The attempts in the usual mode whose forward was requested."""
        self._alive: list[Attempt] = []
        """The attempts of the current round whose outputs are live."""
        self._differentiable: set[Attempt] = set()
        """The attempts whose output can be differentiated."""
        self._launches: dict[Direction, list[wire.Launched]] = {"forward": [], "backward": []}
        """The launches of each answered request in the usual mode."""
        self._errors: dict[Direction, list[float | None]] = {}
        """The error of each compared result, in units of eager's error."""

    # --- steps ------------------------------------------------------------------------------------

    def carry_out(self, plan_round: Round) -> None:
        """Take the steps of a round, if its condition holds, until a request fails.

        A failure ends the round, since the next process would not know the earlier calls.
        """
        if not self._holds(plan_round.condition):
            return
        self._alive = []
        for action, attempt in plan_round.steps:
            if not self._take_step(action, attempt):
                return

    def _holds(self, condition: RoundCondition) -> bool:
        match condition:
            case RoundCondition.ALWAYS:
                return True
            case RoundCondition.ANSWERED:
                return self.execution.answered["forward"].issuperset(self._requested)
            case RoundCondition.FORWARD_RIGHT:
                ended = ENDED & {finding.verdict for finding in self.findings["backward"]}
                return not self.findings["forward"] and not ended

    def _take_step(self, action: Action, attempt: Attempt) -> bool:
        """Take a step; return False if its request failed."""
        match action:
            case Action.FORWARD:
                return self._forward(attempt)
            case Action.BACKWARD if attempt in self._differentiable:
                return self._ask("backward", attempt)[0] is not None
            case Action.OUTPUT:
                self._look_again(attempt, "forward")
            case Action.GRADIENTS:
                self._look_again(attempt, "backward")
            case Action.GRAPH:
                self.notes["backward"] += remarks.graph_notes(self.execution, attempt)
            case Action.COMPARE:
                (self._compare_further if attempt.further else self._compare)(attempt)
        return True

    def _forward(self, attempt: Attempt) -> bool:
        if not attempt.further:
            self._requested.append(attempt)
        results, failure = self._ask("forward", attempt, alive=self._alive)
        if results is None:
            return False
        self._alive.append(attempt)
        findings = self.findings["backward"]
        if not self.execution.names("backward", attempt) or (attempt.further and findings):
            return True
        if failure and failure.verdict in ("INCORRECT_SHAPE", "INCORRECT_DTYPE"):
            findings.append(failure)
        elif any(output and output.differentiable for output in results.values()):
            self._differentiable.add(attempt)
        elif attempt.further:
            findings.append(Finding("INCORRECT_NUMERICAL", f"{NO_GRAD_FN} {attempt.text}"))
        else:
            findings.append(NO_GRADIENT)
        return True

    def _look_again(self, attempt: Attempt, direction: Direction) -> None:
        """Add a finding for each result of the call that a later call changed."""
        if attempt not in self.execution.answered[direction]:
            return
        for name in self.execution.names(direction, attempt):
            later = self.execution.later(name, attempt)
            if isinstance(later, Failure):
                self.findings[direction].append(Finding.of(later))
            elif not torch.equal(integers(self.execution.result(name, attempt)), integers(later)):
                reason = f"{label(name)} of one call changed when the next was made, {AS_IF_SHARED}"
                self.findings[direction].append(Finding("INCORRECT_NUMERICAL", reason))

    def repeat(self) -> None:
        """Repeat the latest attempt in its own memory, if nothing is wrong so far."""
        first, latest = self.plan.first, self.plan.latest
        for direction in self.directions:
            findings = self.findings[direction]
            if findings or self._ask(direction, latest)[1]:
                return
            for name in self.execution.names(direction):
                before = self.execution.result(name, first)
                after = self.execution.result(name, latest)
                findings += differing(self.problem, name, before, after)

    def _ask(
        self, direction: Direction, attempt: Attempt, alive: Sequence[Attempt] = ()
    ) -> tuple[Described | None, Finding | None]:
        """Return the results of one request, None if it failed, and its failure, if any.

        The failure is added to the findings. A request for forward that fails in the usual mode
        fails backward too.
        """
        outcome = self.execution.ask(direction, attempt, alive)
        if outcome.launches and not attempt.further:
            self._launches[direction].append(outcome.launches)
        if not (fault := self.execution.fault(outcome, attempt)):
            return outcome.results, None
        failure = Finding.of(fault, attempt)
        self._add(direction, failure, attempt)
        if direction == "forward" and outcome.results is None and not attempt.further:
            self.findings["backward"].append(failure)
        return outcome.results, failure

    def _add(self, direction: Direction, failure: Finding, attempt: Attempt) -> None:
        """Add a failure to the findings, or only to the notes if a further mode is unsupported.

        Coverage must not depend on the drawn plan; other cases show that a dtype is unsupported. A
        thread pool that writes slices is not a fault either, although it fails in inference mode.
        """
        noted = failure.verdict == "UNSUPPORTED" or failure.kind is Kind.INFERENCE_THREAD
        if not (attempt.further and noted):
            self.findings[direction].append(failure)
        elif not attempt.change:
            self.notes[direction].append(Note("UNSUPPORTED_MODE", failure.reason))

    # --- values -----------------------------------------------------------------------------------

    def _compare(self, first: Attempt) -> None:
        """Compare the results of each direction in which every requested call has results."""
        for direction in self.directions:
            findings, answered = self.findings[direction], self.execution.answered[direction]
            if not answered.issuperset(self._requested):
                continue
            self._errors[direction] = []
            right, found = list[str](), list[Finding]()
            for name in self.execution.names(direction):
                wrong = self._compare_result(direction, name, first)
                found += wrong
                if not wrong and self.execution.result(name, first).numel():
                    right.append(name)
            for finding in found:
                says = _right(right) if finding.verdict == "INCORRECT_NUMERICAL" else ""
                findings.append(finding._replace(reason=finding.reason + says))

    def _compare_result(self, direction: Direction, name: str, first: Attempt) -> list[Finding]:
        """Return what is wrong with a result of the usual calls: the findings on the first fault.

        The first and the latest call are compared, then the call on other inputs, then the
        concurrent calls.
        """
        plan, result = self.plan, self.execution.result
        one, two = result(name, first), result(name, plan.latest)
        found, error = compare(self.problem, name, one, two)
        self._errors[direction].append(error)
        if found:
            return [each._replace(attempt=first) for each in found]
        if plan.other:
            other = self.execution.problem_of(plan.other)
            found = compare_other(other, name, one, result(name, plan.other), OTHER)
            found = [each._replace(attempt=plan.other) for each in found]
        for attempt in plan.concurrent:
            if not found and attempt in self._requested:
                found = differing(self.problem, name, two, result(name, attempt), SAME)
        return found

    def _compare_further(self, attempt: Attempt) -> None:
        """Compare the results of a further call in each direction without findings."""
        problem = self.execution.problem_of(attempt)
        for direction in self.directions:
            findings = self.findings[direction]
            if findings or attempt not in self.execution.answered[direction]:
                continue
            for name in self.execution.names(direction, attempt):
                result = self.execution.result(name, attempt)
                if attempt.change:
                    first = self.execution.result(name, self.plan.first)
                    found = compare_other(problem, name, first, result, attempt.text)
                else:
                    found = wrong_values(problem, name, result, attempt.text)[0]
                findings += [each._replace(attempt=attempt) for each in found]

    # --- the verdict ------------------------------------------------------------------------------

    def _first_finding(self, direction: Direction) -> Finding:
        """Return the first finding in the order of VERDICTS; a failure comes before `UNSUPPORTED`.

        Only compared results pass, whatever the replies claim.
        """
        not_compared = Finding("CRASHED", "no result was compared")
        default = Finding("PASSED", "") if self._errors.get(direction) else not_compared
        return min(
            self.findings[direction] or [default],
            key=lambda finding: (finding.verdict in FINE, ORDER.index(finding.verdict)),
        )

    def verdicts(self, keep: bool = False) -> dict[Direction, Verdict]:
        """Return the verdicts with their remarks, for some of which calls are made again."""
        found = {each: self._first_finding(each) for each in self.directions}
        # first, since another process makes a call again, perhaps with other stores
        stored = {each: self.execution.stored(found[each]) for each in found}
        return {each: self._verdict(each, found[each], stored[each], keep) for each in found}

    def _verdict(self, direction: Direction, finding: Finding, at: Reason, keep: bool) -> Verdict:
        errors = [error for error in self._errors.get(direction, []) if error is not None]
        passed = finding.verdict == "PASSED"
        keep_results = keep and finding.verdict == "INCORRECT_NUMERICAL"
        results = self._first_results(direction) if keep_results else {}
        of = "forward" if finding in self.findings["forward"] else direction
        after = self._recheck.after(of, finding)
        programs = at if at.text else self._recheck.programs(direction, finding)
        launches = remarks.launch_notes(self.execution, self._launches, direction)
        return Verdict(
            solution=self.worker.solution.name,
            op=self.problem.op.name,
            case=self.problem.case.name,
            direction=direction,
            verdict=finding.verdict,
            reason=finding.reason + f", {remarks.ALONE}" * (after is not None) + programs.text,
            kind=finding.kind,
            places=finding.places + programs.places,
            error=max(errors, default=None) if passed else None,
            notes=(*self.notes[direction], *launches) if passed else (),
            configurations=self.execution.configurations(direction),
            after=after,
            difference=finding.difference,
            results=results,
        )

    def _first_results(self, direction: Direction) -> dict[str, torch.Tensor]:
        """Return the first call's results in host memory; no results if they are large."""
        first, names = self.plan.first, self.execution.names(direction)
        count = sum(self.problem.shapes[name].numel() for name in names)
        if first not in self.execution.answered[direction] or count > MOST_ELEMENTS:
            return {}
        return {name: self.execution.result(name, first).cpu() for name in names}


def _right(names: Sequence[str]) -> str:
    """Return in words that these outputs or gradients are right; "" without any."""
    if not names:
        return ""
    plural, are = ("s", "are") if names[1:] else ("", "is")
    what = "" if is_output(names[0]) else f"the gradient{plural} of "
    return f"; {what}{listed(names)} {are} right"
