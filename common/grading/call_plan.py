"""The plan of the calls to one solution in one case: data that is drawn once.

Usually the solution runs forward and backward twice on the same inputs, one call after the other.
In one case of four, several calls are live at the same time, like the layers of a model. After the
first call come a forward on other inputs, written into the first call's tensors; forwards on the
same inputs in separate memory, up to four in small cases; and all backwards, in a random order. In
small cases forwards on changed inputs follow, which expose what a solution keeps under a wrong key;
see `Change`. One case of four has one more call, in a further mode. In a few cases the graph of the
latest call is kept for a second and a double backward, which can only add notes. `grade.py` carries
the plan out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import msgspec

from common.grading.problem import Problem
from common.grading.variations import Change, Mode, allows, changed, modes
from common.solutions import Solution
from common.spec import is_output
from common.wire import FIRST_RUN, SECOND_RUN, UNDRAWN, ConfigurationDraw, Run

MOST_CONCURRENT = 3
"""The most calls concurrent with the latest, to expose a ring of four buffers; at least one is."""
SMALL = 1 << 14
"""The most result elements of a case that has calls like the latest at the same time."""
CHANGES, WRITTEN_EVERY = tuple(Change), 4
"""The changes of inputs, all of which a small case has, but one case in this many has the first."""
MODE_EVERY = 4
"""One case in this many has a call in a further mode."""
GRAPH_EVERY, GRAPHS = 16, 4
"""One case in so many keeps a graph, but about so many cases of a short run, at most half."""
LAUNCHED_EVERY = 4
"""In one case in this many, an autotuner launches a kernel before the launch that counts."""
MOST_LAUNCHES = 2
"""The most of these launches: one alone shows more, but a GPU makes several."""


# --- attempts and steps ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Attempt:
    """One call of the solution, with its own results."""

    name: str
    """The key of the call in the solution's process."""
    mode: Mode
    run: Run
    """Selects the fill of fresh memory and of guard bands, and the order of a launch's programs."""
    change: Change | None = None
    """The difference between the call's inputs and those of the first call."""
    keeps_graph: bool = False
    """Whether backward keeps the graph for GRAPH."""
    text: str = ""
    """The words for a further call in a verdict's reason."""

    @property
    def further(self) -> bool:
        """Whether the call is made only if the usual calls are right, and compared alone."""
        return bool(self.text)

    @property
    def forward_only(self) -> bool:
        """Whether the call has no backward: results of forward show what depends on the inputs."""
        return self.mode.forward_only or self.change not in (None, Change.WRITTEN)


class Action(Enum):
    """The action of a step on an attempt."""

    FORWARD = "forward"
    """Call the solution; the earlier calls of the same round keep their outputs."""
    BACKWARD = "backward"
    OUTPUT = "output once more"
    """Read the output again: a later call must not have changed it."""
    GRADIENTS = "gradients once more"
    GRAPH = "second and double backward"
    """Use a kept graph again; other gradients and wrong second derivatives are notes."""
    COMPARE = "comparison"
    """Compare the results with the oracle's; for `first`, those of all calls in the usual mode."""


class PlanStep(NamedTuple):
    """A request for one attempt, or a comparison of its results."""

    action: Action
    attempt: Attempt


class RoundCondition(Enum):
    """The condition of a round."""

    ALWAYS = ""
    ANSWERED = "if forward answered"
    FORWARD_RIGHT = "if forward is right and backward ended no process"


@dataclass(frozen=True)
class Round:
    """A sequence of steps, which a failed request ends."""

    steps: tuple[PlanStep, ...]
    condition: RoundCondition = RoundCondition.ALWAYS


@dataclass(frozen=True)
class Plan:
    """The attempts at one case, their shared memory, and the rounds of steps over them."""

    first: Attempt
    latest: Attempt
    """The second call on the same inputs, which `PlanRun.repeat` makes again."""
    other: Attempt | None
    """A call on other inputs in the first call's tensors: a replay of the first result is wrong."""
    concurrent: tuple[Attempt, ...]
    """Calls like the latest that are live at the same time, like further layers of a model."""
    sharing: tuple[tuple[Attempt, ...], ...]
    """The groups of attempts whose inputs share memory."""
    rounds: tuple[Round, ...]
    configurations: ConfigurationDraw
    """The draw for autotuned kernels; see `draw_of`."""

    def draw_of(self, attempt: Attempt) -> ConfigurationDraw:
        """Return an attempt's draw: a tuner's own launches come before the first call alone."""
        draw = self.configurations
        return draw if attempt is self.first else msgspec.structs.replace(draw, launches=0)


# --- drawing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanChoices:
    """The choices drawn for one solution in one case."""

    changes: Collection[Change]
    """The changes of further calls, if the problem allows them; only WRITTEN if it is not small."""
    mode: Mode | None
    """The further mode of one more call, if any."""
    concurrent: int
    """The number of calls that are concurrent with the latest, if the results are small."""
    dice: random.Random
    """Shuffles the backwards of concurrent calls."""
    keeps_graph: bool = False
    """Whether the latest call keeps its graph."""
    configurations: ConfigurationDraw = UNDRAWN
    """The draw for autotuned kernels, without a GPU."""


def choose(problem: Problem, solution: Solution) -> PlanChoices:
    """Draw the choices, evenly over the cases of a run; see `Draws.dealt`."""
    case, draws = problem.case.name, problem.draws
    further = modes(problem.op, problem.device)
    index = draws.dealt(MODE_EVERY * len(further), case, solution.name, "mode")
    graph_every = max(2, min(GRAPH_EVERY, math.ceil(len(draws.deck) / GRAPHS)))
    launches = draws.dealt(LAUNCHED_EVERY * MOST_LAUNCHES, case, solution.name, "launches")
    seed = draws.number(solution.name, "configurations")
    position = draws.position(case, solution.name, "configurations")
    return PlanChoices(
        changes=CHANGES[bool(draws.dealt(WRITTEN_EVERY, case, solution.name, "other inputs")) :],
        mode=further[index] if index < len(further) else None,
        concurrent=1 + draws.dealt(MOST_CONCURRENT, case, solution.name, "calls beside the latest"),
        dice=draws.dice(solution.name, case, "order of backwards"),
        keeps_graph=draws.dealt(graph_every, case, solution.name, "graph") == 0,
        configurations=ConfigurationDraw(
            seed, position, 1 + launches if launches < MOST_LAUNCHES else 0
        ),
    )


def further_plans(problem: Problem, solution: Solution, tuned: int) -> Iterator[Plan]:
    """Yield `tuned` plans or more, with every change, mode and number of a tuner's launches."""
    choices, further = choose(problem, solution), modes(problem.op, problem.device)
    for index in range(max(2, len(further), tuned)):
        mode, launches = further[index % len(further)], (index + 1) % (MOST_LAUNCHES + 1)
        draw = ConfigurationDraw(choices.configurations.seed, index, launches)
        choice = replace(choices, changes=CHANGES[index % 2 :], mode=mode, configurations=draw)
        yield plan_of(problem, solution, choice)


def plan_of(problem: Problem, solution: Solution, choices: PlanChoices | None = None) -> Plan:
    """Return the plan of the solution's calls on a problem, by default with drawn choices.

    If the GPU's memory is scarce, no two calls are live at the same time.
    """
    choices = choices or choose(problem, solution)
    backward = not all(map(is_output, problem.names))
    call = (Action.FORWARD, Action.BACKWARD)[: 1 + backward]
    usual = Mode("", problem.op.differentiable)
    first = Attempt("first", usual, FIRST_RUN)
    keeps_graph = choices.keeps_graph and backward and not (problem.scarce or problem.far)
    latest = Attempt("latest", usual, SECOND_RUN, keeps_graph=keeps_graph)
    elements = sum(shape.numel() for shape in problem.shapes.values())
    other, further = None, list[Attempt]()
    for change in (each for each in choices.changes if allows(problem, each)):
        if change is Change.WRITTEN:
            other = Attempt(change.value, usual, FIRST_RUN, change)
        elif elements <= SMALL and not problem.scarce:
            text = _change_text(problem, change)
            further.append(Attempt(change.value, usual, FIRST_RUN, change, text=text))
    if mode := choices.mode:
        # last, since the solution may cache a table in any mode: autograd cannot save a tensor made
        # in inference mode, so that every later backward would fail
        further.append(Attempt("further", mode, SECOND_RUN, text=mode.text))
    in_first_memory = (*filter(None, [other]), *further)
    concurrent: tuple[Attempt, ...] = ()
    sharing: tuple[tuple[Attempt, ...], ...] = ((first, latest, *in_first_memory),)
    if other and not problem.scarce:
        # these calls share the latest call's inputs, and so its guard bytes and its run
        concurrent = tuple(
            Attempt(f"concurrent {n + 1}", usual, SECOND_RUN)
            for n in range(choices.concurrent if elements <= SMALL else 0)
        )
        sharing = (first, *in_first_memory), (latest, *concurrent)
        live = [other, latest, *concurrent]
        steps = (*_steps([Action.FORWARD], live), PlanStep(Action.OUTPUT, other))
        choices.dice.shuffle(live)
        if backward:
            steps += (*_steps([Action.BACKWARD], live), PlanStep(Action.GRADIENTS, live[0]))
        middle = [steps]
    else:
        middle = [_steps(call, [attempt]) for attempt in (latest, other) if attempt]
    rounds = [Round(_steps(call, [first]))]
    rounds += [Round(steps, RoundCondition.ANSWERED) for steps in middle]
    rounds.append(Round((PlanStep(Action.COMPARE, first),)))
    if keeps_graph:
        rounds.append(Round((PlanStep(Action.GRAPH, latest),), RoundCondition.FORWARD_RIGHT))
    for attempt in further:
        actions = (*(call[:1] if attempt.forward_only else call), Action.COMPARE)
        rounds.append(Round(_steps(actions, [attempt]), RoundCondition.FORWARD_RIGHT))
    return Plan(first, latest, other, concurrent, sharing, tuple(rounds), choices.configurations)


def _change_text(problem: Problem, change: Change) -> str:
    """Return the words for a call on changed inputs in a verdict's reason."""
    if change is Change.REPLACED:
        return "of a call on other inputs, at the addresses of freed ones"
    same = " and ".join(sorted(changed(problem, change).unchanged))
    return f"of a call in {change.dtype} on the same {same}"


def _steps(actions: Sequence[Action], attempts: Sequence[Attempt]) -> tuple[PlanStep, ...]:
    return tuple(PlanStep(action, attempt) for attempt in attempts for action in actions)
