"""What one solution is asked in one case: a plan that is drawn once, as data.

Two calls on the same inputs are asked forward and backward, one after the other. In one case of
four several calls live at the same time, as the layers of a model do: after the first call come
forward on other inputs, in the first call's memory; forward on the inputs again, in other memory,
up to four times in small cases; and all backwards, in any order. In one case of four the solution
is called once more in a further mode. `grade.py` carries the plan out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import combinations, count, groupby
from typing import Any, NamedTuple

from common.grading.problem import Problem
from common.solutions import Solution
from common.spec import Op
from common.wire import FIRST_RUN, GUARDS, OUTPUT, POISONS, SECOND_RUN

MOST_CONCURRENT = 3
"""The calls of one case beside the latest, one at least, so that a ring of four buffers shows."""
SMALL = 1 << 14
"""The most elements of a case's results where calls are made beside the latest."""
OTHER_EVERY = 4
"""One case in so many is asked on other inputs too."""
MODE_EVERY = 4
"""One case in so many is asked in a further mode."""


# --- modes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mode:
    """One way of calling a solution."""

    setting: str
    """Where the call runs: `no_grad`, `inference_mode`, `stream`, or "" for nothing special."""
    differentiable: tuple[str, ...]
    """The inputs that take a gradient."""
    text: str = ""
    """A further way in words, for a reason; "" for the usual way."""

    @property
    def forward_alone(self) -> bool:
        """Whether no gradient is asked for."""
        return self.setting in ("no_grad", "inference_mode") or not self.differentiable


def modes(op: Op[Any], device: str) -> list[Mode]:
    """Return every further way of calling the op."""
    names = op.differentiable
    several = [
        Mode("no_grad", names, "under torch.no_grad()"),
        Mode("inference_mode", names, "in torch.inference_mode()"),
        *(Mode("", some, _frozen(some)) for some in _parts(names)),
    ]
    if device == "cuda":
        several.append(Mode("stream", names, "on a stream of its own"))
    return several


def _parts(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield parts of the inputs, none of them whole: `x`, the weights, and some of the weights.

    The last two are `x` with either half of the weights, as where one expert is trained beside a
    frozen one.
    """
    first, rest = names[:1], names[1:]
    if rest:
        yield first
    yield rest
    if len(rest) > 1:
        several = list(_apart(rest))
        yield from several
        yield first + several[0]
        yield first + tuple(name for name in rest if name not in several[0])


def _apart(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield parts so that of any two inputs each is without the other in some part.

    As each input is in half of the parts, and no two in the same ones, four are enough for six.
    The first part is the first half: the three weights of one side.
    """
    parts = next(n for n in count(1) if math.comb(n, n // 2) >= len(names))
    memberships = list(zip(names, combinations(range(parts), parts // 2), strict=False))
    for part in range(parts):
        yield tuple(name for name, held in memberships if part in held)


def _frozen(differentiable: tuple[str, ...]) -> str:
    if not differentiable:
        return "where no input takes a gradient"
    return f"where a gradient is taken by {', '.join(differentiable)} alone"


# --- attempts and steps ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Attempt:
    """One call of the solution, with its surroundings; it has results of its own."""

    name: str
    """The name under which the solution's process keeps the call."""
    mode: Mode
    poison: float
    """What fresh memory holds."""
    guard: int
    """What the guard bands around the inputs and results hold."""
    other: bool = False
    """Whether the inputs are others."""
    backwards: bool = False
    """Whether the interpreter runs the programs of a launch from the last to the first."""

    @property
    def further(self) -> bool:
        """Whether the call is in a further mode."""
        return bool(self.mode.text)


class Action(Enum):
    """The action of a step on an attempt, in words."""

    FORWARD = "forward"
    """Call the solution; the calls of the same round so far keep their outputs."""
    BACKWARD = "backward"
    OUTPUT = "output once more"
    """Take the output again: a later call must not have changed it."""
    GRADIENTS = "gradients once more"
    COMPARE = "comparison"
    """Compare the results with the oracle's, and those of all calls in the usual mode."""


class PlanStep(NamedTuple):
    """A request of one attempt, or a comparison."""

    do: Action
    attempt: Attempt


class RoundCondition(Enum):
    """When a round is carried out, in words."""

    ALWAYS = ""
    ANSWERED = "if forward answered"
    FORWARD_RIGHT = "if forward is right and backward ended no process"


@dataclass(frozen=True)
class Round:
    """Steps that are taken together: a request that fails ends the round."""

    steps: tuple[PlanStep, ...]
    condition: RoundCondition = RoundCondition.ALWAYS

    def __str__(self) -> str:
        """Return the round on one line, such as `forward of first; backward of first`."""
        words = "; ".join(
            f"{do.value} of {', '.join(step.attempt.name for step in several)}"
            for do, several in groupby(self.steps, key=lambda step: step.do)
        )
        return ": ".join(filter(None, (self.condition.value, words)))


@dataclass(frozen=True)
class Plan:
    """The attempts at one case, where they lie in memory, and the rounds of steps over them."""

    first: Attempt
    latest: Attempt
    """The second call on the same inputs, which is repeated."""
    other: Attempt | None
    """A call on other inputs in the first one's memory, where a replayed result is a wrong one."""
    concurrent: tuple[Attempt, ...]
    """Calls as the latest that live beside it, as a model's further layers do."""
    sharing: tuple[tuple[Attempt, ...], ...]
    """The attempts that share the memory of their inputs."""
    rounds: tuple[Round, ...]

    def __str__(self) -> str:
        """Return the plan in a few lines."""
        further = (each for group in self.sharing for each in group if each.further)
        return "\n".join((*map(str, self.rounds), *(f"{n.name}: {n.mode.text}" for n in further)))


# --- drawing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanChoices:
    """The choices drawn for one solution in one case."""

    other: bool
    """Whether it is asked on other inputs too."""
    mode: Mode | None
    """The further mode in which it is asked, if there is one."""
    concurrent: int
    """How many calls live beside the latest one, where results are small."""
    dice: random.Random
    """Shuffles the backwards of calls that live at the same time."""


def choose(problem: Problem, solution: Solution) -> PlanChoices:
    """Draw the choices; the problem's draws deal them evenly over the cases of a run."""
    case, draws = problem.case.name, problem.draws
    several = modes(problem.op, problem.device)
    mode = draws.dealt(MODE_EVERY * len(several), case, solution.name, "mode")
    return PlanChoices(
        other=draws.dealt(OTHER_EVERY, case, solution.name, "other inputs") == 0,
        mode=several[mode] if mode < len(several) else None,
        concurrent=1 + draws.dealt(MOST_CONCURRENT, case, solution.name, "calls beside the latest"),
        dice=draws.dice(solution.name, case, "order of backwards"),
    )


def plan_of(problem: Problem, solution: Solution) -> Plan:
    """Draw what the solution is asked.

    Inputs whose elements lie gigabytes apart are staged once. Where the GPU's memory is scarce,
    calls on other inputs and on these are made one after the other.
    """
    choices = choose(problem, solution)
    backward = problem.names != (OUTPUT,)
    usual = Mode("", problem.op.differentiable)
    first = Attempt("first", usual, POISONS[FIRST_RUN], GUARDS[FIRST_RUN])
    latest = Attempt("latest", usual, POISONS[SECOND_RUN], GUARDS[SECOND_RUN], backwards=True)
    other = further = None
    if choices.other and not problem.far:
        other = Attempt("other inputs", usual, POISONS[FIRST_RUN], GUARDS[FIRST_RUN], other=True)
    if choices.mode:
        further = Attempt("further", choices.mode, POISONS[SECOND_RUN], GUARDS[SECOND_RUN])
    shared = tuple(attempt for attempt in (other, further) if attempt)
    concurrent: tuple[Attempt, ...] = ()
    if other and not problem.low_memory:
        small = sum(shape.numel() for shape in problem.shapes.values()) <= SMALL
        # they share the latest one's inputs, and so its guard bytes
        concurrent = tuple(
            Attempt(f"concurrent {n + 1}", usual, POISONS[n % len(POISONS)], GUARDS[SECOND_RUN])
            for n in range(choices.concurrent if small else 0)
        )
        order = [other, latest, *concurrent]
        choices.dice.shuffle(order)
        asked = [_concurrent_steps((other, latest, *concurrent), order if backward else [])]
        sharing: tuple[tuple[Attempt, ...], ...] = ((first, *shared), (latest, *concurrent))
    else:
        asked = [_sequential_steps(attempt, backward) for attempt in (latest, other) if attempt]
        sharing = ((first, latest, *shared),)
    rounds = [Round(_sequential_steps(first, backward))]
    rounds += [Round(steps, RoundCondition.ANSWERED) for steps in asked]
    rounds.append(Round((PlanStep(Action.COMPARE, first),)))
    if further:
        # last, since a table that a solution keeps may be filled in any mode: one that was made in
        # inference mode serves no call that has a backward
        steps = _sequential_steps(further, backward and not further.mode.forward_alone)
        rounds.append(
            Round((*steps, PlanStep(Action.COMPARE, further)), RoundCondition.FORWARD_RIGHT)
        )
    return Plan(first, latest, other, concurrent, sharing, tuple(rounds))


def _sequential_steps(attempt: Attempt, backward: bool) -> tuple[PlanStep, ...]:
    """Return the steps of a call that is done before the next."""
    return tuple(PlanStep(do, attempt) for do in (Action.FORWARD, Action.BACKWARD)[: 1 + backward])


def _concurrent_steps(attempts: tuple[Attempt, ...], order: list[Attempt]) -> tuple[PlanStep, ...]:
    """Return the steps of calls that live at the same time, with the order of their backwards.

    The results of the first of them, which the others followed, are looked at again.
    """
    steps = [
        *(PlanStep(Action.FORWARD, attempt) for attempt in attempts),
        PlanStep(Action.OUTPUT, attempts[0]),
    ]
    if order:
        steps += [
            *(PlanStep(Action.BACKWARD, attempt) for attempt in order),
            PlanStep(Action.GRADIENTS, order[0]),
        ]
    return tuple(steps)
