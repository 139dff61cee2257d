"""Workers started for a source text, and a request to one; used by the tests of the process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from common.arena import Slot, lay_out
from common.grading.fork_server import ForkServer
from common.grading.worker import Worker
from common.solutions import Solution
from common.wire import Reply

HALF = """
import torch

def rotate_half(x):
    {}
    a, b = x.chunk(2)
    return torch.cat((-b, a))
"""
RIGHT = [-3.0, -4.0, 1.0, 2.0]


class Chosen:
    """The choices of a worker's cases, made by a test instead of by chance."""

    def __init__(self, interleaved: bool = False, mode: int | None = None) -> None:
        """Choose whether two calls live at the same time, and the index of the further mode."""
        self.interleaved, self.mode = interleaved, mode
        self.asked: list[str] = []

    def once_in(self, every: int, what: str) -> bool:
        self.asked.append(what)
        return self.interleaved

    def in_turn(self, among: int, what: str) -> int:
        chosen = among if self.mode is None else self.mode
        return int(self.mode is None) if what == "a mode" else chosen


@contextlib.contextmanager
def workers(server: ForkServer, folder: Path) -> Iterator[Callable[..., Worker]]:
    """Yield a function that starts a worker for a source text; end those that it started."""
    started: list[Worker] = []

    def start(source: str, op: str = "rope", deadline: float = 20.0) -> Worker:
        path = folder / "somebody" / f"{op}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        started.append(Worker(server, Solution(path, op), deadline))
        return started[-1]

    yield start
    for one in started:
        one.close()


def ask(worker: Worker) -> tuple[Reply, list[float]]:
    """Request the rotate_half of four numbers; return the reply and the result."""
    call, result = lay(worker)
    reply = worker.call("forward", call=call, result=result.json(), poison=None)
    return reply, worker.arena(0).tensor(result).tolist()


def lay(worker: Worker) -> tuple[Reply, Slot]:
    """Lay four numbers and a result in the worker's memory; return the call and the result."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    slots = lay_out([("x", x), ("result", torch.empty(4, device="meta"))])
    arena = worker.arena(max(slot.end for slot in slots.values()))
    arena.tensor(slots["x"]).copy_(x)
    call = {
        "tensors": {"x": slots["x"].json()}, "optional": [], "options": {},
        "differentiable": ["x"], "changing": ["x"], "upstream": slots["x"].json(),
    }  # fmt: skip
    return call, slots["result"]
