"""The requests of one case to a solution's process, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from common import wire
from common.arena import integers
from common.grading.call_plan import Attempt, Plan
from common.grading.compare import Finding, label
from common.grading.guarded_memory import CallSlots, GuardedMemory, Tensors, reserve, result_slots
from common.grading.problem import Problem
from common.grading.variations import Change, changed
from common.grading.worker import NO_REPLY, Worker
from common.ops._draw import given
from common.printable import printable
from common.source import Place, Reason
from common.spec import UPSTREAM, Direction, Op, is_output
from common.verdicts import VERDICTS, Autotuned, Failure, merged
from common.wire import FIRST_RUN, GARBAGE, GUARDS, Double, Reply, Result, Run, TensorSlot

Described = dict[str, Result | None]
"""The shapes and dtypes of results by name; None for a gradient that autograd does not return."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request for results, as the solution's process reports it."""

    results: Described | None
    """The requested results; None if the request failed."""
    failure: Failure | None
    launches: wire.Launched | None
    configurations: dict[str, Autotuned]
    """The configurations of autotuned kernels, by kernel."""

    @classmethod
    def of(cls, reply: Reply, direction: Direction, names: Iterable[str]) -> Outcome:
        """Return the outcome that a reply describes; a malformed reply is CRASHED.

        Only a comparison can pass: a reply with the verdict `PASSED` is malformed.
        """
        launches = converted(reply.pop(wire.LAUNCHED, None), wire.Launched | None)
        configurations = configurations_of(reply)
        results = converted(reply, Described if direction == "backward" else dict[str, Result])
        if results is None or results.keys() != set(names):
            return cls(None, failure_of(reply), launches, configurations)
        return cls(results, None, launches, configurations)


def configurations_of(reply: Reply) -> dict[str, Autotuned]:
    """Remove the configurations of autotuned kernels from a reply; return none if malformed."""
    return converted(reply.pop("configurations", {}), dict[str, Autotuned]) or {}


def converted(reported: Any, form: Any) -> Any:
    """Return a reported value as the type `form`, None if it does not have this form."""
    try:
        return msgspec.convert(reported, form)
    except msgspec.ValidationError:
        return None


def failure_of(reply: Reply) -> Failure:
    """Return the failure that a reply describes; CRASHED if it describes none."""
    if reply.get("verdict") in [*VERDICTS][1:] and "reason" in reply:
        return Failure.from_reply(reply)
    return Failure("CRASHED", NO_REPLY)


class Execution:
    """One case's inputs and results in guarded memory, and the requests that use them."""

    def __init__(self, problem: Problem, worker: Worker, plan: Plan) -> None:
        """Reserve the memory; `ask` stages the inputs."""
        self.problem, self.worker, self.plan = problem, worker, plan
        self._outcomes: list[tuple[Direction, Outcome]] = []
        self.answered: dict[Direction, set[Attempt]] = {"forward": set(), "backward": set()}
        self._copies: dict[tuple[str, Attempt], torch.Tensor] = {}
        heads = {attempt: group[0] for group in plan.sharing for attempt in group}
        arena, reserved = reserve(worker, [self._own(*pair) for pair in heads.items()])
        self.memory = GuardedMemory(arena, reserved)
        own = dict(zip(heads, reserved, strict=True))
        self.slots = {
            attempt: CallSlots(
                own[head].inputs | own[attempt].inputs, own[attempt].results or own[head].results
            )
            for attempt, head in heads.items()
        }

    def _own(self, attempt: Attempt, head: Attempt) -> tuple[Tensors, Tensors]:
        """Return the inputs and the results with memory of the attempt's own.

        The other inputs lie in the memory of the first attempt of the group. So do the results if
        GPU memory is scarce: each attempt overwrites the previous attempt's. Only another dtype
        needs other tensors, which are otherwise drawn once they are needed.
        """
        retyped = bool(attempt.change and attempt.change.dtype)
        problem = self.problem_of(attempt) if retyped else self.problem
        inputs, results = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        if attempt is head or retyped:
            inputs = problem.tensors
        if attempt is head or not problem.scarce:
            results = result_slots(problem, self.problem.names)
        own = {name: value for name, value in inputs.items() if name not in problem.unchanged}
        return own, results

    def problem_of(self, attempt: Attempt) -> Problem:
        """Return the problem with the attempt's inputs."""
        return changed(self.problem, attempt.change) if attempt.change else self.problem

    def names(self, direction: Direction, attempt: Attempt | None = None) -> list[str]:
        """Return the names of the results of a direction; a further mode may have fewer."""
        names = [name for name in self.problem.names if is_output(name) == (direction == "forward")]
        if attempt is None or direction == "forward":
            return names
        if attempt.forward_only:
            return []
        return [name for name in names if name in attempt.mode.differentiable]

    def ask(
        self,
        direction: Direction,
        attempt: Attempt,
        alive: Sequence[Attempt] = (),
        double: Double = "",
    ) -> Outcome:
        """Request a call of the solution, or the gradients of its output.

        The results are written to the attempt's slots, and copied at once: the process can still
        write there. During a call the calls `alive` keep their outputs; the process drops all
        others. With `double`, request second derivatives in place of gradients; see `wire.Double`.
        """
        names = self.names(direction, attempt)
        if direction == "forward":
            request = self._forward(attempt, attempt.run, alive=[each.name for each in alive])
        else:
            request = self._backward(attempt, double)
        outcome = Outcome.of(self.worker.ask(request), direction, names)
        self._outcomes.append((direction, outcome))
        if outcome.results is not None and None not in outcome.results.values():
            self.answered[direction].add(attempt)
            for name in names:
                self._copies[name, attempt] = self._present(name, attempt)
        return outcome

    def _backward(self, attempt: Attempt, double: Double = "") -> wire.Request:
        return wire.Backward(
            attempt=attempt.name, results=self._results("backward", attempt),
            keep=attempt.keeps_graph, double=double,
        )  # fmt: skip

    def _results(self, direction: Direction, attempt: Attempt) -> dict[str, TensorSlot]:
        """Return the slots of a direction's results."""
        slots = self.slots[attempt].results
        return {name: slots[name] for name in self.names(direction, attempt)}

    def _forward(self, attempt: Attempt, run: Run, **fields: Any) -> wire.Request:
        """Stage the attempt's guard bytes and its inputs as they were drawn; return the request."""
        problem, slots = self.problem_of(attempt), self.slots[attempt]
        self.memory.stage(slots, problem.tensors, GUARDS[attempt.run])
        if problem.scarce:
            for slot in slots.results.values():
                self.memory.arena.bytes_of(slot).fill_(GARBAGE)
        call = call_of(problem.op, problem.arguments, slots.inputs)
        call.differentiable = list(attempt.mode.differentiable)
        call.kept = sorted(problem.unchanged)
        others = [name for name in call.tensors if name not in problem.unchanged]
        if attempt.change is Change.WRITTEN:
            call.written = others
        elif attempt.change is Change.REPLACED:
            call.freed = others
        return wire.Forward(
            attempt=attempt.name, call=call, results=self._results("forward", attempt), run=run,
            setting=attempt.mode.setting, configurations=self.plan.draw_of(attempt), **fields,
        )  # fmt: skip

    def fault(self, outcome: Outcome, attempt: Attempt) -> Failure | None:
        """Return the failure of a request, or the first one in the guard bytes, inputs or results.

        A result fails here by its shape or dtype.
        """
        if outcome.results is None:
            return outcome.failure
        if overrun := self.memory.overrun():
            return Failure("OUT_OF_BOUNDS", overrun)
        if mutated := self.memory.changed():
            return Failure("MUTATED_INPUT", f"{mutated} changed")
        problem = self.problem_of(attempt)
        for name, result in outcome.results.items():
            what = label(name)
            if result is None:
                return Failure("INCORRECT_NUMERICAL", f"{what} is None, not even zeros")
            shape, dtype = list(problem.shapes[name]), problem.case.dtype
            if result.shape != shape:
                reason = f"{what} has shape {result.shape}, expected {shape}"
                return Failure("INCORRECT_SHAPE", reason)
            if result.dtype != dtype:
                return Failure("INCORRECT_DTYPE", f"{what} is {result.dtype}, expected {dtype}")
        return None

    def configurations(self, direction: Direction) -> dict[str, Autotuned]:
        """Return the configurations of autotuned kernels in a direction, by kernel.

        Those of forward count for backward too, which may use what forward saved.
        """
        asked = (each for asked, each in self._outcomes if asked in ("forward", direction))
        return merged(each.configurations for each in asked)

    def _present(self, name: str, attempt: Attempt) -> torch.Tensor:
        slot = self.slots[attempt].results[name]
        return self.problem.kept(self.memory.arena.tensor(slot))

    def result(self, name: str, attempt: Attempt) -> torch.Tensor:
        """Return the copy of a result that was made when the process delivered it."""
        return self._copies[name, attempt]

    def later(self, name: str, attempt: Attempt) -> torch.Tensor | Failure:
        """Return the current content of an earlier result, or the failure of the request."""
        slot = self.slots[attempt].results[name]
        reply = self.worker.ask(wire.Deliver(attempt=attempt.name, name=name, result=slot))
        return failure_of(reply) if reply.get("verdict") else self._present(name, attempt)

    def stored(self, finding: Finding) -> Reason:
        """Return the place of the store that explains a finding, in words; "" if none does."""
        attempt, wrong = finding.attempt, finding.difference
        missed = finding.verdict in ("MUTATED_INPUT", "UNWRITTEN_OUTPUT")  # by the store
        if not attempt or finding.verdict == "OUT_OF_BOUNDS" or not (wrong or missed):
            return Reason("")
        name, index = (wrong.result, wrong.index) if wrong else ("", (0,))
        bits = None if missed else int(integers(self.result(name, attempt))[index])
        request = wire.Stored(attempt=attempt.name, name=name, index=index, bits=bits)
        place = converted(self.worker.ask(request).get("place"), Place)
        words = printable(f", {'stored at ' * (not missed)}{place}")
        return Reason(words, (place,)) if place else Reason("")

    def conflict(self, attempt: Attempt, direction: Direction) -> Reason:
        """Repeat the call, and return two conflicting programs in words; "" for none."""
        reply = self.worker.ask(self._forward(attempt, FIRST_RUN, conflicts=True))
        if direction == "backward" and not reply.get("verdict"):
            reply = self.worker.ask(self._backward(attempt))
        return converted(reply.get("conflict"), Reason) or Reason("")


def call_of(op: Op[Any], arguments: dict[str, Any], slots: dict[str, TensorSlot]) -> wire.Arguments:
    """Return the message that describes a call, with the options that differ from their default.

    `slots` are those of the inputs and of the upstream gradients.
    """
    tensors = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    _, options = given(op, arguments)
    upstream = {name: slot for name, slot in slots.items() if name.startswith(UPSTREAM)}
    changing = dict.fromkeys((*op.differentiable, *upstream), 1)
    for name in op.permutable:  # whole slices along the first dimension change places
        slot = slots[name]
        block, count = slot.stride[0], slot.nbytes // getattr(torch, slot.dtype).itemsize
        if block and count % block == 0:
            changing[name] = block
    return wire.Arguments(
        tensors={name: slots[name] for name in tensors},
        optional=[name for name in options if name in tensors],
        options={name: value for name, value in options.items() if name not in tensors},
        differentiable=list(op.differentiable),
        changing=changing,
        upstream=upstream,
    )
