"""What is added to a verdict and changes none: explanations of a failure, and notes on a pass.

To explain a failure, its call is made again: in a new process, since the failure may depend on an
earlier call, or to find two programs that conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from common import wire
from common.errors import Kind, Note
from common.gradients import outputs_of, second_derivatives
from common.grading.call_plan import Attempt
from common.grading.compare import Finding, wrong_values
from common.grading.execution import Execution
from common.grading.oracle import leaves
from common.grading.problem import Problem
from common.printable import printable
from common.source import Reason
from common.spec import DIRECTIONS, Direction

ALONE = "passes in a process of its own"
REPEATABLE = frozenset(
    "RUNTIME_ERROR OUT_OF_BOUNDS UNWRITTEN_OUTPUT INCORRECT_SHAPE INCORRECT_DTYPE"
    " INCORRECT_NUMERICAL".split()
)
"""The verdicts on a call that may depend on earlier calls of the process."""
MOST_RECURRED = 2
"""A worker's failures that recur in a new process before no further one is repeated."""
LOST, ROUNDED = 0.1, 8.0
"""The rms error of second derivatives that is no fault: the share of the truth's rms, or the
multiple of eager's error. A term that autograd loses is larger."""
DOUBLE = range(1 << 8, 1 << 20)
"""The numbers of result elements for which there is a double backward."""


# --- a failure ------------------------------------------------------------------------------------


class Recheck:
    """The calls of a failed case that are made again, in the memory of the case."""

    def __init__(self, execution: Execution, earlier: tuple[str, ...]) -> None:
        """Make no call yet; `earlier` are the cases that the process answered before."""
        self._execution, self._earlier = execution, earlier
        self._passes_alone: dict[tuple[Direction, Attempt], bool] = {}

    def after(self, direction: Direction, finding: Finding) -> tuple[str, ...] | None:
        """Return the cases on which a failure depends; None if it depends on no earlier call.

        The call is made again as the first of a new process, and is right there. Once two failures
        of a worker have recurred, no further one is repeated.
        """
        attempt, worker = finding.attempt, self._execution.worker
        if not attempt or finding.verdict not in REPEATABLE or finding.kind is not Kind.NONE:
            return None
        key, is_first = (direction, attempt), attempt is self._execution.plan.first
        if key not in self._passes_alone:
            passes = False
            if not is_first or self._earlier:
                if worker.recurred >= MOST_RECURRED:
                    return None
                worker.end_process()
                worker.cases.append(self._execution.problem.case.name)
                passes = self._is_right(direction, attempt)
            worker.recurred += not passes
            self._passes_alone[key] = passes
        if not self._passes_alone[key]:
            return None
        return () if attempt.further else self._earlier

    def _is_right(self, direction: Direction, attempt: Attempt) -> bool:
        """Make a call again and compare its results of a direction with the oracle's."""
        execution = self._execution
        for each in _until(direction):
            if execution.fault(execution.ask(each, attempt), attempt):
                return False
        problem = execution.problem_of(attempt)
        return not any(
            wrong_values(problem, name, execution.result(name, attempt))[0]
            for name in execution.names(direction, attempt)
        )

    def programs(self, direction: Direction, finding: Finding) -> Reason:
        """Return the two conflicting programs if results differ, as the end of the reason.

        On a GPU, return the command that names the programs of the failure.
        """
        differs, solution = finding.verdict == "NONDETERMINISTIC", self._execution.worker.solution
        illegal = finding.verdict == "OUT_OF_BOUNDS" or finding.kind is Kind.ILLEGAL_ACCESS
        on_gpu = self._execution.problem.device == "cuda" and not solution.peer
        if on_gpu and (illegal or differs):
            return Reason(f" (nox -s check -- {solution.handle} --device cpu names the programs)")
        if not differs:
            return Reason("")
        conflict = self._execution.conflict(self._execution.plan.latest, direction)
        return conflict._replace(text=f": {conflict.text}") if conflict.text else conflict


def _until(direction: Direction) -> tuple[Direction, ...]:
    return DIRECTIONS[: DIRECTIONS.index(direction) + 1]


# --- the launches of a pass -----------------------------------------------------------------------


def launch_notes(
    execution: Execution,
    launched: Mapping[Direction, Sequence[wire.Launched]],
    direction: Direction,
) -> Iterator[Note]:
    """Yield a note if the solution caught a launch's exception, or launched no kernel.

    No kernel is needed if an input is empty. `launched` are the launches of each answered request
    in the usual mode.
    """
    for launches in launched[direction]:
        if launches.caught:
            yield Note("CAUGHT", printable(str(launches.caught.get("reason"))))
            break
    made = [launches.count for each in _until(direction) for launches in launched[each]]
    lacks = bool(made) and not any(made) and not execution.worker.solution.peer
    if lacks and all(each.numel() for each in execution.problem.tensors.values()):
        yield Note("NO_KERNEL")


# --- a kept graph ---------------------------------------------------------------------------------


def graph_notes(execution: Execution, attempt: Attempt) -> Iterator[Note]:
    """Yield notes on whether a second backward of a kept graph is wrong, then a double backward.

    What an error refuses is not wrong. There is no double backward unless the second backward is
    right, nor of very few elements, for which eager's errors are no measure, or of very many, for
    which the oracle would need much memory. Its loss is linear in the output if an error of the
    solution refuses the quadratic loss: torch's `once_differentiable` does so only where the
    upstream gradient takes a gradient.
    """
    problem, again = execution.problem, _of_kept_graph(execution, attempt)
    wrong = [name for name, result in again.items() if wrong_values(problem, name, result)[0]]
    if again:
        yield Note("OTHER_GRADIENTS", ", ".join(wrong), found=bool(wrong))
    elements = sum(shape.numel() for shape in problem.shapes.values())
    if wrong or not again or elements not in DOUBLE:
        return
    losses: tuple[wire.Double, ...] = ("quadratic", "constant")
    for loss in losses:
        if second := _of_kept_graph(execution, attempt, loss):
            wrong = _wrong_second_derivatives(problem, second, loss == "constant")
            yield Note("OTHER_SECOND_DERIVATIVES", ", ".join(wrong), found=bool(wrong))
            return


def _of_kept_graph(
    execution: Execution, attempt: Attempt, double: wire.Double = ""
) -> dict[str, torch.Tensor]:
    """Return the gradients of a graph that backward has kept; none if an error refuses them."""
    results = execution.ask("backward", attempt, double=double).results
    if results is None or None in results.values():
        return {}
    return {name: execution.result(name, attempt) for name in results}


def _wrong_second_derivatives(
    problem: Problem, results: Mapping[str, torch.Tensor], constant: bool
) -> list[str]:
    """Return the results of a double backward that lack a part of the truth.

    No rounding explains their error. For `constant` see `gradients.second_derivatives`.
    """

    def derived(dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
        """Return the reference's second derivatives in a dtype, by default the arguments'."""
        names = problem.op.differentiable
        inputs = leaves(problem.arguments, names, dtype)
        outputs = outputs_of(problem.op.reference(**inputs))
        weights = [each.to(outputs[0].dtype) for each in problem.upstream.values()]
        wanted = [inputs[name] for name in names]
        second = second_derivatives(outputs, wanted, weights, constant)
        return dict(zip(names, second, strict=True))

    eager, wrong = derived(None), list[str]()
    for name, truth in derived(torch.float64).items():
        allowed = max(LOST * _rms(truth), ROUNDED * _rms(eager[name] - truth))
        error = _rms(results[name] - truth)
        if error > allowed or (error.isnan() and not allowed.isnan()):
            wrong.append(name)
    return wrong


def _rms(values: torch.Tensor) -> torch.Tensor:
    return values.double().square().mean().sqrt()
