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
from typing import Any, ClassVar

from common.grading.problem import Problem
from common.solutions import Solution
from common.spec import Direction, Op
from common.wire import GUARDS, OUTPUT, POISONS

MOST_BESIDE = 3
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
    places = list(zip(names, combinations(range(parts), parts // 2), strict=False))
    for part in range(parts):
        yield tuple(name for name, held in places if part in held)


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
    spare: bool = False
    """Whether it is left out once backward has ended a process: after one more such end forward
    would not be asked either."""
    backwards: bool = False
    """Whether the interpreter runs the programs of a launch from the last to the first."""

    @property
    def further(self) -> bool:
        """Whether the call is in a further mode."""
        return bool(self.mode.text)


@dataclass(frozen=True)
class Step:
    """A request of one attempt, or a comparison."""

    words: ClassVar[str]
    attempt: Attempt

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts that it is of."""
        return (self.attempt,)


@dataclass(frozen=True)
class Forward(Step):
    """Call the solution; the calls of the attempts `alive` keep their outputs."""

    words = "forward"
    alive: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class Backward(Step):
    """Differentiate an output; with `retain`, its graph can be differentiated once more."""

    words = "backward"
    retain: bool = False


@dataclass(frozen=True)
class Deliver(Step):
    """Take the results of an earlier call once more: the next one must not have changed them."""

    words = "results once more"
    direction: Direction


@dataclass(frozen=True)
class BackwardAgain(Step):
    """Differentiate a kept graph a second time; how that fails is noted and decides nothing."""

    words = "second backward"


@dataclass(frozen=True)
class Compare(Step):
    """Compare the results of a call with the oracle's, and with those of further calls."""

    words = "comparison"
    latest: Attempt | None = None
    """The second call on the same inputs, which a call in a further mode lacks."""
    other: Attempt | None = None
    """The call on other inputs, if there is one."""
    beside: tuple[Attempt, ...] = ()

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All of which results are compared."""
        several = (self.attempt, self.latest, self.other, *self.beside)
        return tuple(each for each in several if each)


class If(Enum):
    """When a round is carried out, in words."""

    ALWAYS = ""
    ANSWERED = "if forward answered"
    RIGHT = "if nothing is wrong"
    FORWARD_RIGHT = "if forward is right and backward ended no process"


@dataclass(frozen=True)
class Round:
    """Steps that are taken together: a request that fails ends the round."""

    condition: If
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        """Return the round on one line, such as `forward of first; backward of first`."""
        words = []
        for kind, steps in groupby(self.steps, key=lambda step: step.words):
            words.append(f"{kind} of {', '.join(n.name for step in steps for n in step.attempts)}")
        return ": ".join(filter(None, (self.condition.value, "; ".join(words))))


@dataclass(frozen=True)
class Plan:
    """The attempts at one case, where they lie in memory, and the rounds of steps over them."""

    first: Attempt
    """The first call, whose results are held against the oracle's."""
    latest: Attempt
    """The second call on the same inputs, which is repeated."""
    places: tuple[tuple[Attempt, ...], ...]
    """The attempts that share the memory of their inputs."""
    rounds: tuple[Round, ...]

    def __str__(self) -> str:
        """Return the plan in a few lines."""
        several = (each for place in self.places for each in place if each.further)
        return "\n".join((*map(str, self.rounds), *(f"{n.name}: {n.mode.text}" for n in several)))


# --- drawing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choices:
    """The choices drawn for one solution in one case."""

    other: bool
    """Whether it is asked on other inputs too."""
    mode: Mode | None
    """The further mode in which it is asked, if there is one."""
    beside: int
    """How many calls live beside the latest one, where results are small."""
    dice: random.Random
    """Shuffles the backwards of calls that live at the same time."""


def choose(problem: Problem, solution: Solution) -> Choices:
    """Draw the choices; the problem's draws deal them evenly over the cases of a run."""
    case, draws = problem.case.name, problem.draws
    several = modes(problem.op, problem.device)
    mode = draws.dealt(MODE_EVERY * len(several), case, solution.name, "mode")
    return Choices(
        other=draws.dealt(OTHER_EVERY, case, solution.name, "other inputs") == 0,
        mode=several[mode] if mode < len(several) else None,
        beside=1 + draws.dealt(MOST_BESIDE, case, solution.name, "calls beside the latest"),
        dice=draws.dice(solution.name, case, "order of backwards"),
    )


def plan_of(problem: Problem, solution: Solution) -> Plan:
    """Draw what the solution is asked.

    Inputs whose elements lie gigabytes apart are laid once. Where the GPU's memory is scarce, calls
    on other inputs and on these are made one after the other.
    """
    choices = choose(problem, solution)
    backward = problem.names != (OUTPUT,)
    usual = Mode("", problem.op.differentiable)
    first = Attempt("first", usual, POISONS[0], GUARDS[0])
    latest = Attempt("latest", usual, POISONS[1], GUARDS[1], backwards=True)
    other = further = None
    if choices.other and not problem.far:
        other = Attempt("other inputs", usual, POISONS[0], GUARDS[0], other=True, spare=True)
    if choices.mode:
        further = Attempt("further", choices.mode, POISONS[1], GUARDS[1])
    shared = tuple(each for each in (other, further) if each)
    beside: tuple[Attempt, ...] = ()
    order: list[Attempt] = []
    if other and not problem.frugal:
        small = sum(shape.numel() for shape in problem.shapes.values()) <= SMALL
        # they share the latest one's inputs, and so its guard bytes
        beside = tuple(
            Attempt(f"beside {n + 1}", usual, POISONS[n % len(POISONS)], GUARDS[1], spare=True)
            for n in range(choices.beside if small else 0)
        )
        order = [other, latest, *beside]
        choices.dice.shuffle(order)
        asked = [_together((other, latest, *beside), order if backward else [])]
        places: tuple[tuple[Attempt, ...], ...] = ((first, *shared), (latest, *beside))
    else:
        asked = [_alone(each, backward) for each in (latest, other) if each]
        places = ((first, latest, *shared),)
    rounds = [Round(If.ALWAYS, _alone(first, backward))]
    rounds += [Round(If.ANSWERED, steps) for steps in asked]
    rounds.append(Round(If.ALWAYS, (Compare(first, latest, other, beside),)))
    if order and backward:
        rounds.append(Round(If.RIGHT, (BackwardAgain(order[-1]),)))
    if further:
        # last, since a table that a solution keeps may be filled in any mode: one that was made in
        # inference mode serves no call that has a backward
        steps = _alone(further, backward and not further.mode.forward_alone)
        rounds.append(Round(If.FORWARD_RIGHT, (*steps, Compare(further))))
    return Plan(first, latest, places, tuple(rounds))


def _alone(attempt: Attempt, backward: bool) -> tuple[Step, ...]:
    """Return the steps of a call that is done before the next."""
    return (Forward(attempt), Backward(attempt)) if backward else (Forward(attempt),)


def _together(attempts: tuple[Attempt, ...], order: list[Attempt]) -> tuple[Step, ...]:
    """Return the steps of calls that live at the same time, with the order of their backwards.

    The results of the first of them, which the others followed, are looked at again.
    """
    steps: list[Step] = [Forward(each, attempts[:n]) for n, each in enumerate(attempts)]
    steps.append(Deliver(attempts[0], "forward"))
    if order:
        *most, last = order
        steps += [*map(Backward, most), Backward(last, retain=True), Deliver(order[0], "backward")]
    return tuple(steps)
