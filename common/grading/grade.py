"""The verdict of one solution on one case, in each direction.

`PlanRun` carries out a plan (`call_plan.py`): it sends requests to the solution's process
(`execution.py`) and collects findings from the replies, the shared memory and the values
(`compare.py`). The finding with the earliest cause is the verdict. The oracle's results never leave
the harness's process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from common import wire
from common.errors import Kind
from common.grading.call_plan import Action, Attempt, Plan, Round, RoundCondition, plans_of
from common.grading.compare import (
    Finding,
    altered,
    compare,
    compare_other,
    differing,
    label,
    wrong_values,
)
from common.grading.execution import Described, Execution, Outcome
from common.grading.mismatch import listed
from common.grading.problem import OUTPUT, Problem, call_tensors
from common.grading.worker import Worker
from common.printable import printable
from common.source import Reason
from common.spec import DIRECTIONS, Direction
from common.verdicts import ENDED, FINE, VERDICTS, Failure, Verdict
from common.wire import Result

ORDER = list(VERDICTS)
LONGEST_REPEATS = 5.0
"""Seconds after which a case is not repeated; calls of 20 ms or less get all repeats."""
MOST_ELEMENTS = 1 << 14
"""The most elements of a direction's results that are kept with its verdict."""
SAME = "the same inputs, in concurrent calls"
OTHER = "of a call on other inputs"
ALONE = "passes in a process of its own"
REPEATABLE = frozenset(
    "RUNTIME_ERROR OUT_OF_BOUNDS UNWRITTEN_OUTPUT INCORRECT_SHAPE INCORRECT_DTYPE"
    " INCORRECT_NUMERICAL".split()
)
"""The verdicts on a call that may depend on earlier calls of the process."""
MOST_RECURRED = 2
"""A worker's failures that recur in a new process before no further one is repeated."""
NO_GRAD_FN = "the output has no grad_fn"
NO_GRADIENT = Finding("UNSUPPORTED", f"{NO_GRAD_FN}: return it from a torch.autograd.Function")
NO_KERNEL = "no Triton kernel was launched, torch answered"
CAUGHT = "an exception of a launch was caught by the solution"
"""The start of a note whose end is the exception's reason."""
OTHER_GRADIENTS = "a second backward of a retained graph gives other gradients"
OTHER_SECOND_DERIVATIVES = "a double backward gives wrong second derivatives and no error"
PROGRAMS = {"OUT_OF_BOUNDS": "the program", "NONDETERMINISTIC": "programs whose order matters"}
"""The verdicts with faulty programs, and a phrase for the programs that the interpreter names."""


def grade_case(
    problem: Problem,
    worker: Worker,
    repeats: int = 0,
    keep: bool = False,
    thorough: bool = False,
) -> dict[Direction, Verdict]:
    """Return the verdicts of the worker's solution on a problem.

    The worker answers the plan's calls and, if nothing is wrong, up to `repeats` repetitions of the
    latest call. With `keep`, a verdict of wrong values includes the results if they are small. With
    `thorough`, every change of inputs and every mode follows, until a call fails.
    """
    verdicts: dict[Direction, Verdict] = {}
    for plan in plans_of(problem, worker.solution, thorough):
        run = PlanRun(problem, worker, plan)
        for plan_round in plan.rounds:
            run.carry_out(plan_round)
        start = time.monotonic()
        for _ in range(repeats):
            run.repeat()
            if time.monotonic() - start > LONGEST_REPEATS:
                break
        verdicts = {direction: run.verdict(direction, keep) for direction in run.directions}
        found = {verdict.verdict for verdict in verdicts.values()}
        if "PASSED" not in found or not found <= FINE:
            break
    return verdicts


class PlanRun:
    """A plan in progress: the calls made so far, and their findings."""

    def __init__(self, problem: Problem, worker: Worker, plan: Plan) -> None:
        """Reserve the plan's memory."""
        self.problem, self.worker, self.plan = problem, worker, plan
        self.execution = Execution(problem, worker, plan)
        self._earlier = tuple(worker.cases)
        """The cases that the process answered before."""
        worker.cases.append(problem.case.name)
        self._alone: dict[tuple[Direction, Attempt], bool] = {}
        """Whether each failed call passes in a process of its own."""
        self.directions = [direction for direction in DIRECTIONS if self.execution.names(direction)]
        self.findings: dict[Direction, list[Finding]] = {"forward": [], "backward": []}
        self.notes: dict[Direction, list[str]] = {"forward": [], "backward": []}
        """Remarks that do not affect the verdict."""
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
            case RoundCondition.RIGHT:
                return not any(self.findings.values())
            case RoundCondition.FORWARD_RIGHT:
                ended = ENDED & {finding.verdict for finding in self.findings["backward"]}
                return not self.findings["forward"] and not ended

    def _take_step(self, action: Action, attempt: Attempt) -> bool:
        """Take a step; return False if its request failed."""
        match action:
            case Action.FORWARD:
                return self._forward(attempt)
            case Action.BACKWARD:
                return (
                    attempt not in self._differentiable
                    or self._ask("backward", attempt)[0] is not None
                )
            case Action.OUTPUT:
                self._look_again(attempt, "forward")
            case Action.GRADIENTS:
                self._look_again(attempt, "backward")
            case Action.AGAIN:
                return self._again(attempt)
            case Action.DOUBLE:
                self._double(attempt)
            case Action.COMPARE:
                (self._compare_alone if attempt.further else self._compare)(attempt)
        return True

    def _forward(self, attempt: Attempt) -> bool:
        if not attempt.further:
            self._requested.append(attempt)
        results, failure = self._ask("forward", attempt, alive=self._alive)
        if results is None:
            return False
        self._alive.append(attempt)
        if self._has_backward(attempt, results[OUTPUT], failure):
            self._differentiable.add(attempt)
        return True

    def _has_backward(
        self, attempt: Attempt, output: Result | None, failure: Finding | None
    ) -> bool:
        """Return whether to request a backward; if the output does not allow it, add a finding."""
        findings = self.findings["backward"]
        if not self.execution.names("backward", attempt) or (attempt.further and findings):
            return False
        if failure and failure.verdict in ("INCORRECT_SHAPE", "INCORRECT_DTYPE"):
            findings.append(failure)
            return False
        differentiable = output is not None and output.differentiable
        if not differentiable:
            reason = f"{NO_GRAD_FN} {attempt.text}"
            findings.append(
                Finding("INCORRECT_NUMERICAL", reason) if attempt.further else NO_GRADIENT
            )
        return differentiable

    def _look_again(self, attempt: Attempt, direction: Direction) -> None:
        """Add a finding for each result of the call that a later call changed."""
        if attempt not in self.execution.answered[direction]:
            return
        for name in self.execution.names(direction, attempt):
            later = self.execution.later(name, attempt)
            if isinstance(later, Failure):
                self.findings[direction].append(_finding(later))
            else:
                result = self.execution.result(name, attempt)
                self.findings[direction] += altered(name, result, later)

    def _again(self, attempt: Attempt) -> bool:
        """Note the wrong gradients of a second backward; return whether all are right."""
        gradients = self._gradients_of_kept(attempt)
        wrong = [
            name for name, result in gradients.items()
            if wrong_values(self.problem, name, result, "")
        ]  # fmt: skip
        if wrong:
            self.notes["backward"].append(f"{OTHER_GRADIENTS}: of {', '.join(wrong)}")
        return bool(gradients) and not wrong

    def _double(self, attempt: Attempt) -> None:
        """Note wrong second derivatives of a loss.

        The loss is linear in the output if an error of the solution refuses the quadratic loss:
        torch's `once_differentiable` does so only where the upstream gradient takes a gradient.
        """
        losses: tuple[wire.Double, ...] = ("quadratic", "constant")
        for loss in losses:
            if gradients := self._gradients_of_kept(attempt, loss):
                wrong = self.problem.wrong_second_derivatives(gradients, loss == "constant")
                if wrong:
                    note = f"{OTHER_SECOND_DERIVATIVES}: of {', '.join(wrong)}"
                    self.notes["backward"].append(note)
                return

    def _gradients_of_kept(
        self, attempt: Attempt, double: wire.Double = ""
    ) -> dict[str, torch.Tensor]:
        """Return the gradients of a graph that backward has kept; none if an error refuses them."""
        results = self.execution.ask("backward", attempt, double=double).results
        if results is None or None in results.values():
            return {}
        return {name: self.execution.result(name, attempt) for name in results}

    def repeat(self) -> None:
        """Repeat the latest attempt in its own memory, if nothing is wrong so far."""
        first, latest = self.plan.first, self.plan.latest
        for direction in self.directions:
            findings = self.findings[direction]
            if findings or self._ask(direction, latest)[1]:
                return
            for name in self.execution.names(direction):
                before = self.execution.result(name, first)
                findings += differing(name, before, self.execution.result(name, latest))

    # --- replies ----------------------------------------------------------------------------------

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
        results = outcome.results
        failure = self._failure(outcome, attempt)
        if failure and attempt.further:
            failure = failure._replace(reason=f"{failure.reason}, {attempt.text}")
        if failure:
            failure = failure._replace(attempt=attempt)
            self._add(direction, failure, attempt)
            if direction == "forward" and results is None and not attempt.further:
                self.findings["backward"].append(failure)
        return results, failure

    def _add(self, direction: Direction, failure: Finding, attempt: Attempt) -> None:
        """Add a failure to the findings, or only to the notes if a further mode is unsupported.

        Coverage must not depend on the drawn plan; other cases show that a dtype is unsupported. A
        thread pool that writes slices is not a fault either, although it fails in inference mode.
        """
        noted = failure.verdict == "UNSUPPORTED" or failure.kind is Kind.INFERENCE_THREAD
        if not (attempt.further and noted):
            self.findings[direction].append(failure)
        elif not attempt.change:
            self.notes[direction].append(failure.reason)

    def _failure(self, outcome: Outcome, attempt: Attempt) -> Finding | None:
        """Return the failure of a request, or the first one in the guard bytes, inputs or results.

        A result fails here by its shape or dtype.
        """
        if outcome.results is None:
            assert outcome.failure
            return _finding(outcome.failure)
        if overrun := self.execution.memory.overrun():
            return Finding("OUT_OF_BOUNDS", overrun)
        if changed := self.execution.memory.changed():
            return Finding("MUTATED_INPUT", f"{changed} changed")
        problem = self.execution.problem_of(attempt)
        for name, result in outcome.results.items():
            if result is None:
                return Finding("INCORRECT_NUMERICAL", f"{label(name)} is None, not even zeros")
            shape, dtype = list(problem.shapes[name]), problem.case.dtype
            if result.shape != shape:
                reason = f"{label(name)} has shape {result.shape}, expected {shape}"
                return Finding("INCORRECT_SHAPE", reason)
            if result.dtype != dtype:
                reason = f"{label(name)} is {result.dtype}, expected {dtype}"
                return Finding("INCORRECT_DTYPE", reason)
        return None

    # --- values -----------------------------------------------------------------------------------

    def _compare(self, first: Attempt) -> None:
        """Compare the results of each direction in which every requested call has results."""
        plan, result = self.plan, self.execution.result
        concurrent = [attempt for attempt in plan.concurrent if attempt in self._requested]
        for direction in self.directions:
            findings, answered = self.findings[direction], self.execution.answered[direction]
            if not answered.issuperset(self._requested):
                if answered and {finding.verdict for finding in findings} == {"UNSUPPORTED"}:
                    findings.append(Finding("NONDETERMINISTIC", "unsupported in one run of two"))
                continue
            self._errors[direction] = []
            right: list[str] = []
            found: list[Finding] = []
            for name in self.execution.names(direction):
                one, two = result(name, first), result(name, plan.latest)
                new_findings, error = compare(self.problem, name, one, two, bool(plan.other))
                new_findings = [each._replace(attempt=first) for each in new_findings]
                if plan.other and not new_findings:
                    other = self.execution.problem_of(plan.other)
                    again = result(name, plan.other)
                    new_findings = compare_other(other, name, one, again, OTHER)
                    new_findings = [each._replace(attempt=plan.other) for each in new_findings]
                for attempt in concurrent:
                    if not new_findings:
                        new_findings = differing(name, two, result(name, attempt), SAME)
                found += new_findings
                right += [name] * (not new_findings and one.numel() > 0)
                self._errors[direction].append(error)
            findings += [
                finding._replace(reason=finding.reason + _right(right))
                if finding.verdict == "INCORRECT_NUMERICAL"
                else finding
                for finding in found
            ]

    def _compare_alone(self, attempt: Attempt) -> None:
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
                    found = wrong_values(problem, name, result, attempt.text)
                findings += [each._replace(attempt=attempt) for each in found]

    def _first_results(self, direction: Direction) -> dict[str, torch.Tensor]:
        """Return the first call's results in host memory; no results if they are large."""
        first, names = self.plan.first, self.execution.names(direction)
        count = sum(self.problem.shapes[name].numel() for name in names)
        if first not in self.execution.answered[direction] or count > MOST_ELEMENTS:
            return {}
        return {name: self.execution.result(name, first).cpu() for name in names}

    # --- the verdict ------------------------------------------------------------------------------

    def verdict(self, direction: Direction, keep: bool = False) -> Verdict:
        """Return the finding with the earliest cause; a failure comes before `UNSUPPORTED`.

        Only compared results pass, whatever the replies claim.
        """
        errors = [error for error in self._errors.get(direction, []) if error is not None]
        not_compared = Finding("CRASHED", "no result was compared")
        default = Finding("PASSED", "") if self._errors.get(direction) else not_compared
        finding = min(
            self.findings[direction] or [default],
            key=lambda finding: (finding.verdict in FINE, ORDER.index(finding.verdict)),
        )
        passed = finding.verdict == "PASSED"
        keep_results = keep and finding.verdict == "INCORRECT_NUMERICAL"
        results = self._first_results(direction) if keep_results else {}
        programs = self._programs(direction, finding)
        reason = finding.reason + programs.text
        after = None
        if finding.attempt and self._passes_alone(direction, finding, finding.attempt):
            reason += f", {ALONE}"
            after = () if finding.attempt.further else self._earlier
        return Verdict(
            solution=self.worker.solution.name,
            op=self.problem.op.name,
            case=self.problem.case.name,
            direction=direction,
            verdict=finding.verdict,
            reason=reason,
            kind=finding.kind,
            places=finding.places + programs.places,
            error=max(errors, default=None) if passed else None,
            notes=(*self.notes[direction], *self._launch_notes(direction)) if passed else (),
            configurations=self.execution.configurations(direction),
            after=after,
            group=finding.group,
            picture=finding.picture,
            plan="" if finding.verdict in FINE else str(self.plan),
            results=results,
        )

    def _passes_alone(self, direction: Direction, finding: Finding, attempt: Attempt) -> bool:
        """Return whether a failed call is right as the first call of a new process.

        Once two failures of a worker have recurred, no further one is repeated.
        """
        if finding.verdict not in REPEATABLE or finding.kind is not Kind.NONE:
            return False
        if finding in self.findings["forward"]:
            direction = "forward"
        if (direction, attempt) not in self._alone:
            passes, worker = False, self.worker
            if attempt is not self.plan.first or self._earlier:
                if worker.recurred >= MOST_RECURRED:
                    return False
                worker.end_process()
                worker.cases.append(self.problem.case.name)
                passes = self._is_right(direction, attempt)
            worker.recurred += not passes
            self._alone[direction, attempt] = passes
        return self._alone[direction, attempt]

    def _is_right(self, direction: Direction, attempt: Attempt) -> bool:
        """Make a call again and compare its results of a direction with the oracle's."""
        for each in DIRECTIONS[: DIRECTIONS.index(direction) + 1]:
            if self._failure(self.execution.ask(each, attempt), attempt):
                return False
        problem, result = self.execution.problem_of(attempt), self.execution.result
        return not any(
            wrong_values(problem, name, result(name, attempt), "")
            for name in self.execution.names(direction, attempt)
        )

    def _launch_notes(self, direction: Direction) -> Iterator[str]:
        """Yield a note if the solution caught a launch's exception, or launched no kernel.

        No kernel is needed for results without elements, zeros, or copies of an input.
        """
        for launches in self._launches[direction]:
            if launches.caught:
                yield f"{CAUGHT}: {printable(str(launches.caught.get('reason')))}"
                break
        until = DIRECTIONS[: DIRECTIONS.index(direction) + 1]
        made = [launches.count for each in until for launches in self._launches[each]]
        if not any(made) and made and not self.worker.solution.peer and self._has_work(until):
            yield NO_KERNEL

    def _has_work(self, directions: Sequence[Direction]) -> bool:
        """Return whether a result has a nonzero element and is no copy of an input."""
        inputs = call_tensors(self.problem.arguments, self.problem.grad_output).values()
        results = (
            self.execution.result(name, self.plan.first)
            for direction in directions
            for name in self.execution.names(direction)
        )
        return any(
            bool(result.count_nonzero())
            and not any(torch.equal(result, value.to(result)) for value in inputs)
            for result in results
        )

    def _programs(self, direction: Direction, finding: Finding) -> Reason:
        """Return the two conflicting programs if results differ, as the end of the reason.

        On a GPU, return the command that names the programs of the failure.
        """
        illegal = finding.kind is Kind.ILLEGAL_ACCESS
        programs = PROGRAMS.get("OUT_OF_BOUNDS" if illegal else finding.verdict)
        solution = self.worker.solution
        if programs and self.problem.device == "cuda" and not solution.peer:
            return Reason(f" (nox -s check -- {solution.handle} --device cpu names {programs})")
        if finding.verdict != "NONDETERMINISTIC":
            return Reason("")
        conflict = self.execution.conflict(self.plan.latest, direction)
        return conflict._replace(text=f": {conflict.text}") if conflict.text else conflict


def _right(names: Sequence[str]) -> str:
    """Return in words that these gradients are right; "" without any."""
    if not names:
        return ""
    gradients, are = ("gradients", "are") if names[1:] else ("gradient", "is")
    return f"; the {gradients} of {listed(names)} {are} right"


def _finding(failure: Failure) -> Finding:
    return Finding(failure.verdict, failure.reason, kind=failure.kind, places=failure.places)
