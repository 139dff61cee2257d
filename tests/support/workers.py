"""Source texts, workers started for one, a request to one, and a compiler without a GPU.

The fixtures are a plugin, which conftest.py names.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common import disk_cache, ops, wire
from common.arena import end_of, lay_out
from common.grading import compiling
from common.grading.call_plan import PlanChoices
from common.grading.compiling import Compiler
from common.grading.fork_server import ForkServer
from common.grading.problem import Problem
from common.grading.sweep import Graded, Sweep
from common.grading.variations import Change, modes
from common.grading.worker import Worker
from common.solutions import Solution
from common.spec import Case, Op
from common.verdicts import Verdict
from common.wire import Reply

HALF = """
import torch

def rotate_half(x):
    {}
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""
RIGHT = [-3.0, -4.0, 1.0, 2.0]

LAUNCHED = """
import torch
import triton
import triton.language as tl


{decorators}
@triton.jit
def kernel(x, y, BLOCK: tl.constexpr{more}):
    {lines}


def rotate_half(x, *, interleaved=False):
    y = torch.empty_like(x)
    {before}
    kernel[{grid}](x, y{rest})
    return y
"""
COPIES = "tl.store(y + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, BLOCK)))"

MASKED = ops.load("masked_linear")
CASES = {case.name: case for case in MASKED.cases("smoke")}
SAVES = """
import torch

class MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask[:, None])
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        {before}
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x = torch.where(mask, grad @ w_v, grad @ w_t) if ctx.needs_input_grad[0] else None
        d_v, d_t = (grad * mask).T @ x, (grad * ~mask).T @ x
        return d_x, d_v, d_t * {factor}, None

def masked_linear(x, w_v, w_t, mask):
    {first}
    return MaskedLinear.apply(x, w_v, w_t, mask)
"""
CHOOSE = "common.grading.call_plan.choose"
AS_IT_IS = {"before": "pass", "factor": "1", "first": "pass"}


def chosen(
    interleaved: bool = False,
    mode: int | None = None,
    concurrent: int = 3,
    dice: Any = None,
    keeps_graph: bool = False,
    change: Change | None = None,
) -> Callable[..., PlanChoices]:
    """Return a function in the place of `choose`: a test makes the choices; `mode` is an index."""

    def choose(problem: Problem, solution: Solution) -> PlanChoices:
        several = modes(problem.op, problem.device)
        further = None if mode is None else several[mode]
        changes = [Change.WRITTEN] * interleaved or [change] * bool(change)
        dealt = changes, further, concurrent, dice or random.Random(0)
        return PlanChoices(*dealt, keeps_graph)

    return choose


def launched(lines: str, decorators: str = "", **parts: str) -> str:
    """Return the source of a rotate_half that launches a kernel of these lines."""
    parts = {"rest": ", 64", "grid": "(1,)", "before": "pass", "more": ""} | parts
    return LAUNCHED.format(lines=lines, decorators=decorators, **parts)


def written(
    folder: Path, source: str, op: str = "rotate_half", handle: str = "somebody"
) -> Solution:
    """Write a solution into the folder, and return it."""
    path = folder / handle / f"{op}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return Solution(path, op)


def graded_as(
    op: Op[Any], case: Case, solution: Solution, verdict: str = "PASSED", device: str = "cpu"
) -> Graded:
    """Return a case as if it had been graded, with one verdict in each of its directions."""
    names = solution.name, op.name, case.name
    verdicts = {each: Verdict(*names, each, verdict) for each in case.directions}
    worker = SimpleNamespace(solution=solution, ends=0)
    return Graded(worker, SimpleNamespace(op=op, case=case, device=device), verdicts)


@pytest.fixture
def graded_source(fork_server: ForkServer, tmp_path: Path) -> Callable[..., list[Graded]]:
    """Return a function that grades a source on cases of an op, in a sweep with these options."""

    def grade(op: Op[Any], cases: list[Case], source: str, repeats=0, **options) -> list[Graded]:
        with Sweep("cpu", server=fork_server, **options) as sweep:
            solutions = [written(tmp_path, source, op.name)]
            return list(sweep.grade(op, cases, solutions, repeats=repeats))

    return grade


@contextlib.contextmanager
def workers(server: ForkServer, folder: Path) -> Iterator[Callable[..., Worker]]:
    """Yield a function that starts a worker for a source text; end those that it started."""
    started: list[Worker] = []

    def start(source: str, op: str = "rope", deadline: float = 20.0, **options: Any) -> Worker:
        started.append(Worker(server, written(folder, source, op), deadline, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def worker(fork_server: ForkServer, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Return a function that starts a solution from its source; see `workers`."""
    with workers(fork_server, tmp_path) as start:
        yield start


def ask(worker: Worker) -> tuple[Reply, list[float]]:
    """Request the rotate_half of four numbers; return the reply and the result."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    slots = lay_out([("x", x), ("result", torch.empty(4, device="meta"))])
    arena = worker.arena(max(map(end_of, slots.values())))
    arena.tensor(slots["x"]).copy_(x)
    slot = slots["x"]
    call = wire.Arguments({"x": slot}, [], {}, ["x"], {"x": 1}, upstream={"upstream": slot})
    reply = worker.ask(wire.Forward(call=call, results={"output": slots["result"]}))
    return reply, arena.tensor(slots["result"]).tolist()


@pytest.fixture(scope="module")
def target():
    with contextlib.closing(ForkServer("cpu", target=wire.STAND_IN)) as server:
        yield server


@pytest.fixture
def compiler(target, monkeypatch, tmp_path):
    """Return a compiler whose server is this module's, and whose cache is empty."""
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path)
    monkeypatch.setattr(compiling, "ForkServer", lambda *_, **how: target)
    monkeypatch.setattr(target, "close", lambda: None)
    return lambda device="cpu": Compiler(device)
