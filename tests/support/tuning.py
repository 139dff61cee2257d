"""Fixtures for the tests of `tune`: a folder that declares configurations, and a clock for a CPU.

Each configuration makes its call in the solution's own process and takes the time that a table has
for it. The fixtures are a plugin, which conftest.py names.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from common import wire
from common.measure import machine
from common.paths import CONTRIBUTORS
from common.solutions import discover
from common.tuning import search
from common.tuning.search import CaseStarted, Found

DEVICE, FILE = "NVIDIA H200", "nvidia-h200.jsonl"
DEADLINE = 20.0

# BLOCK says what becomes of a call: below 100 it is right, and from there on it is as named.
SOLUTION = '''"""x turned in plain torch, as a configuration has it"""
import os

import torch
from configs import Tuned
from triton.runtime.errors import OutOfResources

SPACE = {space}
turn = Tuned("turn", default={{"BLOCK": {default}}}, space=[{{"BLOCK": b}} for b in SPACE])
back = Tuned("back", default={{"BLOCK": 1}}, space=[{{"BLOCK": b}} for b in SPACE])
TUNED = (turn, back)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _run(turn, x)

    @staticmethod
    def backward(ctx, grad):
        return -_run(back, grad)


def _run(kernel, x):
    block = kernel(x.numel() // x.shape[-1], widths=(x.shape[-1],), like=x)["BLOCK"]
    if block == 100:
        raise OutOfResources(300_000, 232_448, "shared memory")
    if 101 <= block <= 104:
        os.abort()
    while block == 105:
        pass
    if block == 106:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x2 if block == 107 else -x2, x1), dim=-1)


def rotate_half(x):
    return _Turn.apply(x)
'''

NOTHING = "def rotate_half(x):\n    raise NotImplementedError\n"


def block_of(config):
    (block,) = config.values()
    return block


class FakeClock:
    """Microseconds by configuration: what each lookup of the call adds; `stop` interrupts."""

    def __init__(self, times, stop=None):
        self.times, self.stop, self.calls = times, stop, []

    def __call__(self, worker, staged, direction, choices):
        if len(self.calls) == self.stop:
            raise KeyboardInterrupt
        self.calls.append((direction, choices))
        # forward alone, as a clock would have it: nothing takes a gradient
        call = staged.calls[0]
        if direction == "forward":
            call = msgspec.structs.replace(call, differentiable=[])
        reply = worker.ask(wire.Lookups(call=call, choices=choices))
        if reply.get("verdict"):
            return reply
        chosen = {json.dumps(choice[:4]): block_of(choice[4]) for choice in choices}
        due = [shape for shapes in reply["asked"].values() for shape in shapes]
        total = sum(self.times(shape, chosen.get(json.dumps(shape), 1)) for shape in due)
        return {"gpu": [total, total + 100, total - 100]}


def by_block(shape, block):
    """4 is the fastest on the small one and 2 on the other."""
    best = 4 if shape[1] == 80 else 2
    return 10.0 + 5 * abs(block - best)


@pytest.fixture(scope="module")
def as_on_a_gpu():
    """The files are named as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "device_name", lambda device: DEVICE)
        patch.setattr(machine, "results_folder", lambda device: FILE.removesuffix(".jsonl"))
        yield


@pytest.fixture
def alice(tmp_path, fork_server):
    """A folder with the helper in it."""
    return Folder(tmp_path / "contributors" / "alice", fork_server)


class Folder:
    """`write` adds a solution, `run` tunes what is there."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.points = folder / "configs" / FILE
        self.file = self.points.with_suffix(".json")
        self.said: list[str] = []
        folder.mkdir(parents=True)
        helper = (CONTRIBUTORS / "_template" / "configs.py").read_text()
        (folder / "configs.py").write_text(helper)

    def write(self, space=(1, 2, 4), default=1, text=SOLUTION, name="rotate_half"):
        (self.folder / f"{name}.py").write_text(text.format(space=tuple(space), default=default))
        return self

    def run(self, times=by_block, stop=None, only=None, deadline=DEADLINE):
        """The results, or None if nothing was searched or the search was stopped; and the clock."""
        self.said.clear()
        clock = FakeClock(times, stop)
        chosen = [s for s in discover(self.folder.parent) if only in (None, s.path.stem)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "time_forced", clock)
            try:
                events = search.tune(chosen, "cpu", deadline=deadline, server=self.server)
                return self._found(events), clock
            except KeyboardInterrupt:
                assert stop is not None
                return None, clock

    def _found(self, events):
        found = None
        for event in events:
            if isinstance(event, str):
                self.said.append(event)
            elif isinstance(event, CaseStarted):
                found = found or []
            elif isinstance(event, Found):
                found.append(event)
        return found

    @property
    def saved(self):
        return json.loads(self.file.read_text())

    @property
    def blocks(self):
        """Kernel, then tokens -> BLOCK."""
        kernels = self.saved["kernels"]
        return {k: {e["tokens"]: block_of(e["config"]) for e in kernels[k]} for k in kernels}
