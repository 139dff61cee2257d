"""One solution, one case -> its verdict in each direction.

`pose` draws the inputs and works out what is right and how far eager itself is from it; `grade` has
a solution's process answer twice and compares. The oracle's answer never leaves this process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from common.arena import Arena, Slot, lay_out, storage_bytes
from common.spec import DIRECTIONS, Case, Direction, Op
from common.worker import Died, Reply, Worker

# The earliest cause wins; the first two are no failures.
VERDICTS = (
    "PASSED",
    "UNSUPPORTED",
    "COMPILE_ERROR",
    "RUNTIME_ERROR",
    "CRASHED",
    "TIMEOUT",
    "TAMPERED",
    "IMPOSSIBLE_SPEED",
    "OUT_OF_BOUNDS",
    "MUTATED_INPUT",
    "UNWRITTEN_OUTPUT",
    "INCORRECT_SHAPE",
    "INCORRECT_DTYPE",
    "INCORRECT_NUMERICAL",
    "NONDETERMINISTIC",
)
FINE = ("PASSED", "UNSUPPORTED")

FEW_ELEMENTS = 1000
DRAWS_OF_FEW = 8
POISONS = (float("nan"), 12_345.0)
GARBAGE = 0xA5


@dataclass(frozen=True)
class Verdict:
    """What one solution got for one direction of one case."""

    solution: str
    op: str
    case: str
    direction: Direction
    verdict: str
    reason: str = ""
    error: float | None = None
    """The solution's error in units of eager's own: rms, or the largest on small tensors."""

    @property
    def fine(self) -> bool:
        return self.verdict in FINE


# --- the problem ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """How far eager is from the oracle on one result; `rms` only where it says something."""

    rms: float | None
    largest: float


@dataclass(frozen=True)
class Problem:
    """A case with its inputs drawn, and for the output and each gradient the truth and budget."""

    op: Op[Any]
    case: Case
    arguments: dict[str, Any]
    upstream: torch.Tensor
    truth: dict[str, torch.Tensor]
    budgets: dict[str, Budget]

    @property
    def slack(self) -> float:
        return self.op.slack[self.case.dtype]


OUTPUT = "output"


def pose(op: Op[Any], case: Case, seed: int, device: str) -> Problem:
    """Draw the case's inputs; the oracle is the reference in float64, the budget eager's error.

    `seed` is the harness's secret. On tensors of fewer than 1,000 elements eager may be lucky, so
    that its largest error of eight draws counts there.
    """
    arguments, upstream = draw(op, case, seed, device)
    truth = solve(op, arguments, upstream, double=True)
    eager = solve(op, arguments, upstream)
    budgets = {name: _budget(eager[name], truth[name]) for name in truth}
    if any(0 < tensor.numel() < FEW_ELEMENTS for tensor in truth.values()):
        for again in range(1, DRAWS_OF_FEW):
            drawn = draw(op, case, seed + again, device)
            other, exact = solve(op, *drawn), solve(op, *drawn, double=True)
            for name, budget in budgets.items():
                largest = max(budget.largest, _budget(other[name], exact[name]).largest)
                budgets[name] = Budget(budget.rms, largest)
    return Problem(op, case, arguments, upstream, truth, budgets)


def draw(op: Op[Any], case: Case, seed: int, device: str) -> tuple[dict[str, Any], torch.Tensor]:
    """The arguments of one call and a random upstream gradient, which is as much a view as they."""
    generator = torch.Generator(device).manual_seed(seed)
    arguments = op.draw(case, generator)
    with torch.no_grad():
        output = op.reference(**arguments)
    upstream = torch.randn(
        output.shape[::-1], generator=generator, device=device, dtype=torch.float32
    ).to(output.dtype)
    upstream = upstream.permute(*reversed(range(output.dim())))
    views = not all(t.is_contiguous() for t in arguments.values() if isinstance(t, torch.Tensor))
    return arguments, upstream if views else upstream.contiguous()


def solve(
    op: Op[Any], arguments: dict[str, Any], upstream: torch.Tensor, double: bool = False
) -> dict[str, torch.Tensor]:
    """The reference's output and gradients; in float64, freqs too, it is the oracle."""

    def prepared(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        value = value.double() if double else value
        return value.detach().requires_grad_(name in op.differentiable)

    ready = {name: prepared(name, value) for name, value in arguments.items()}
    output = op.reference(**ready)
    wanted = [ready[name] for name in op.differentiable]
    gradients = torch.autograd.grad(output, wanted, upstream.double() if double else upstream)
    return {OUTPUT: output.detach(), **dict(zip(op.differentiable, gradients, strict=True))}


def _budget(eager: torch.Tensor, truth: torch.Tensor) -> Budget:
    if not truth.numel():
        return Budget(None, 0.0)
    error = (eager.double() - truth).abs()
    rms = _rms(error) if truth.numel() >= FEW_ELEMENTS else None
    return Budget(rms, error.max().item())


def _rms(error: torch.Tensor) -> float:
    return error.square().mean().sqrt().item()


Finding = tuple[str, str]
"""A verdict and its reason."""

# --- grading --------------------------------------------------------------------------------------


def grade(problem: Problem, worker: Worker) -> dict[Direction, Verdict]:
    """Have the worker answer twice and judge each direction by the earliest cause in VERDICTS."""
    exchange = Exchange(problem, worker)
    findings: dict[Direction, list[Finding]] = {"forward": [], "backward": []}
    errors: dict[Direction, float | None] = {"forward": None, "backward": None}
    for attempt in range(len(POISONS)):
        _attempt(exchange, attempt, findings)
        if exchange.answered["forward"] <= attempt:
            break
    for direction, names in _results(problem).items():
        once = 0 < exchange.answered[direction] < len(POISONS)
        if once and {verdict for verdict, _ in findings[direction]} == {"UNSUPPORTED"}:
            findings[direction].append(("NONDETERMINISTIC", "unsupported in one run of two"))
        if exchange.answered[direction] == len(POISONS):
            for name in names:
                found, error = _compare(problem, name, exchange.results(name))
                findings[direction] += found
                known = [e for e in (errors[direction], error) if e is not None]
                errors[direction] = max(known, default=None)
    return {
        direction: _verdict(problem, worker, direction, findings[direction], errors[direction])
        for direction in DIRECTIONS
    }


def _results(problem: Problem) -> dict[Direction, list[str]]:
    return {"forward": [OUTPUT], "backward": list(problem.op.differentiable)}


def _verdict(
    problem: Problem,
    worker: Worker,
    direction: Direction,
    findings: list[Finding],
    error: float | None,
) -> Verdict:
    """The earliest cause; a failure comes before what is unsupported."""
    findings = findings or [("PASSED", "")]
    verdict, reason = min(findings, key=lambda found: (found[0] in FINE, VERDICTS.index(found[0])))
    return Verdict(
        solution=worker.solution.name,
        op=problem.op.name,
        case=problem.case.name,
        direction=direction,
        verdict=verdict,
        reason=reason,
        error=error if verdict == "PASSED" else None,
    )


def _attempt(exchange: Exchange, attempt: int, findings: dict[Direction, list[Finding]]) -> None:
    """One forward and one backward, with whatever is found wrong at once."""
    exchange.lay_inputs()
    reply = _asked(exchange.forward, attempt)
    failure = _failure(reply, {OUTPUT: reply}, exchange)
    if failure:
        findings["forward"].append(failure)
    if reply.get("verdict"):
        findings["backward"].append((reply["verdict"], reply["reason"]))
        return
    if not reply["differentiable"]:
        findings["backward"].append(("UNSUPPORTED", "the output has no grad_fn"))
        return
    if failure and failure[0] in ("INCORRECT_SHAPE", "INCORRECT_DTYPE"):
        findings["backward"].append(failure)
        return
    reply = _asked(exchange.backward, attempt)
    failure = _failure(reply, reply, exchange)
    if failure:
        findings["backward"].append(failure)


def _asked(request: Callable[[int], Reply], attempt: int) -> Reply:
    """The reply, or what became of the process; a reply of another form is no reply."""
    try:
        reply = request(attempt)
    except Died as death:
        return {"verdict": death.verdict, "reason": death.reason}
    if "verdict" in reply:
        well_formed = reply["verdict"] in VERDICTS and "reason" in reply
    else:
        results = [reply] if "shape" in reply else reply.values()
        well_formed = bool(reply) and all(map(_is_result, results))
    if well_formed:
        return reply
    return {"verdict": "CRASHED", "reason": "the process wrote what is no reply"}


def _is_result(result: Any) -> bool:
    return result is None or (
        isinstance(result, dict)
        and isinstance(result.get("shape"), list)
        and isinstance(result.get("dtype"), str)
    )


def _failure(reply: Reply, results: dict[str, Reply | None], exchange: Exchange) -> Finding | None:
    """What a reply, the shapes it reports and the arguments left behind say by themselves."""
    if reply.get("verdict"):
        return reply["verdict"], reply["reason"]
    if changed := exchange.changed():
        return "MUTATED_INPUT", f"{changed} changed"
    for name, result in results.items():
        label = _label(name)
        if result is None:
            return "INCORRECT_NUMERICAL", f"{label} is None"
        wanted = exchange.slots[f"{name} 0"]
        if tuple(result["shape"]) != wanted.size:
            shape, size = result["shape"], list(wanted.size)
            return "INCORRECT_SHAPE", f"{label} has shape {shape}, expected {size}"
        if result["dtype"] != wanted.dtype:
            return "INCORRECT_DTYPE", f"{label} is {result['dtype']}, expected {wanted.dtype}"
    return None


def _label(name: str) -> str:
    return OUTPUT if name == OUTPUT else f"the gradient of {name}"


class Exchange:
    """The memory shared for one case, and the two requests made over it."""

    def __init__(self, problem: Problem, worker: Worker) -> None:
        self.problem, self.worker = problem, worker
        self.answered: dict[Direction, int] = {"forward": 0, "backward": 0}
        self._inputs = call_tensors(problem.arguments, problem.upstream)
        dtype = getattr(torch, problem.case.dtype)
        rooms = {
            f"{name} {attempt}": torch.empty(truth.shape, dtype=dtype, device="meta")
            for name, truth in problem.truth.items()
            for attempt in range(len(POISONS))
        }
        self.slots = lay_out([*self._inputs.items(), *rooms.items()])
        self._arena: Arena = worker.arena(max(slot.end for slot in self.slots.values()))
        for name in rooms:
            self._arena.bytes_of(self.slots[name]).fill_(GARBAGE)

    def lay_inputs(self) -> None:
        """As they were drawn, whatever an earlier attempt did to them."""
        for name, tensor in self._inputs.items():
            self._arena.bytes_of(self.slots[name]).copy_(storage_bytes(tensor))

    def forward(self, attempt: int) -> Reply:
        poison = POISONS[attempt]
        reply = self.worker.call(
            "forward",
            call=call_json(self.problem.op, self.problem.arguments, self.slots),
            result=self.slots[f"{OUTPUT} {attempt}"].json(),
            poison=None if poison != poison else poison,
        )
        self.answered["forward"] += not reply.get("verdict")
        return reply

    def backward(self, attempt: int) -> Reply:
        names = self.problem.op.differentiable
        reply = self.worker.call(
            "backward",
            upstream=self.slots["upstream"].json(),
            results={name: self.slots[f"{name} {attempt}"].json() for name in names},
        )
        failed = reply.get("verdict") or None in reply.values()
        self.answered["backward"] += not failed
        return reply

    def changed(self) -> str | None:
        """The first argument whose memory is not what was drawn."""
        for name, tensor in self._inputs.items():
            if not torch.equal(self._arena.bytes_of(self.slots[name]), storage_bytes(tensor)):
                return "the upstream gradient" if name == "upstream" else name
        return None

    def results(self, name: str) -> list[torch.Tensor]:
        """The result of each attempt."""
        return [self._arena.tensor(self.slots[f"{name} {i}"]) for i in range(len(POISONS))]


def call_tensors(arguments: dict[str, Any], upstream: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {name: v for name, v in arguments.items() if isinstance(v, torch.Tensor)}
    return {**tensors, "upstream": upstream}


def call_json(op: Op[Any], arguments: dict[str, Any], slots: dict[str, Slot]) -> Reply:
    """One call as its worker is told of it: only the options that are not left at their default."""
    contract = inspect.signature(op.interface.__call__).parameters
    tensors = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    return {
        "tensors": {name: slots[name].json() for name in tensors},
        "optional": [name for name in tensors if contract[name].default is not inspect._empty],
        "options": {
            name: value
            for name, value in arguments.items()
            if name not in tensors and value != contract[name].default
        },
        "differentiable": list(op.differentiable),
        "upstream": slots["upstream"].json(),
    }


# --- the numeric rule -----------------------------------------------------------------------------


def _compare(
    problem: Problem, name: str, attempts: list[torch.Tensor]
) -> tuple[list[Finding], float | None]:
    """What the values of one result are guilty of, and its error in units of eager's."""
    first, second = attempts
    truth, budget = problem.truth[name], problem.budgets[name]
    if not truth.numel():
        return [], None
    findings = []
    unwritten = first.isnan() & ~second.isnan() & ~truth.isnan()
    if unwritten.any():
        where = _first(unwritten)
        count = f"{int(unwritten.sum())} of {truth.numel()} elements"
        reason = f"{_at(name, where)} holds fresh memory, as do {count} in all"
        findings.append(("UNWRITTEN_OUTPUT", reason))
    wrong, ratio = check_values(first, truth, budget, problem.slack)
    if wrong:
        findings.append(("INCORRECT_NUMERICAL", f"{_at(name, wrong.index)}: {wrong.text}"))
    differs = _bits(first) != _bits(second)
    if differs.any():
        where = _first(differs)
        values = f"{first[where].item():.8g}, then {second[where].item():.8g}"
        reason = f"{_at(name, where)} was {values} on the same inputs"
        findings.append(("NONDETERMINISTIC", reason))
    return findings, ratio


@dataclass(frozen=True)
class Wrong:
    """The first wrong element and what is wrong with it."""

    index: tuple[int, ...]
    text: str


def check_values(
    actual: torch.Tensor, truth: torch.Tensor, budget: Budget, slack: float
) -> tuple[Wrong | None, float | None]:
    """The numeric rule: rms at most `slack` times eager's, and every element within one ulp of its
    oracle value or `2 * slack` times eager's largest error. NaN and infinity never pass where the
    oracle has neither. Returns the first wrong element, if any, and error / eager's error, which
    is None where eager alone is exact."""
    error = (actual.double() - truth).abs()
    allowed = _ulp(truth, actual.dtype).clamp_min(2 * slack * budget.largest)
    bad = ~(error <= allowed) & (actual.double() != truth)
    measured, eager = error.max().item(), budget.largest
    if budget.rms is not None:
        measured, eager = _rms(error), budget.rms
    ratio = 1.0 if measured == eager else measured / eager if eager else None
    if bad.any():
        return _wrong(_first(bad), actual, truth, f"{int(bad.sum())} of {bad.numel()} wrong"), ratio
    if budget.rms is not None and not measured <= slack * eager:
        worst = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
        text = f"rms error {measured:.3g}, eager's {eager:.3g}, {slack:g} times that allowed"
        return _wrong(worst, actual, truth, text), ratio
    return None, ratio


def _wrong(index: tuple[int, ...], actual: torch.Tensor, truth: torch.Tensor, text: str) -> Wrong:
    expected, came = truth[index].item(), actual[index].item()
    return Wrong(index, f"expected {expected:.8g}, got {came:.8g} ({text})")


def _ulp(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance from each oracle value to the next number of the dtype."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(truth.abs().clamp_min(info.smallest_normal))
    return torch.ldexp(torch.full_like(truth, info.eps), exponent - 1)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(mask.flatten().int().argmax(), mask.shape))


def _at(name: str, index: tuple[int, ...]) -> str:
    return f"{_label(name)} at {list(index)}"
