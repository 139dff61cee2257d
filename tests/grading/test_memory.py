"""The memory of a GPU, pretended: what is under way together, and what is freed for more."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from common import ops
from common.grading import memory, sweep, tiers
from common.grading.memory import CONTEXT, GIB, IDLE, DeviceMemory, Footprint, MemoryBudget
from common.grading.sweep import Sweep
from common.solutions import Solution
from tests.support.workers import written

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))[:4]


@pytest.mark.parametrize(
    ("gib", "together", "low_memory"),
    [(141, 100, False), (80, 50, False), (16, 1, True), (8, 1, True)],
)
def test_a_large_case_leaves_room_for_fewer(gib, together, low_memory):
    rope = ops.load("rope")
    case = max(rope.cases("board"), key=lambda each: rope.work(each, "forward").bytes)
    footprint, memory = Footprint.by(rope, case), DeviceMemory(lambda: gib * GIB)
    assert footprint.low_memory(memory.budget) == low_memory
    most = MemoryBudget(memory).together(footprint, timed=True)
    assert most >= together if together > 1 else most < 12


@pytest.mark.parametrize(("gib", "large"), [(16, set()), (8, {"4096x4096x14336-bfloat16-span"})])
def test_the_boards_cases_fit_the_cards_that_people_own(gib, large):
    """8 GiB hold all but the widest layer, with two sets of three weights."""
    several = [(op, case) for op in map(ops.load, ops.names()) for case in op.cases("board")]
    found = {case.name for op, case in several if not Footprint.by(op, case).least <= gib * GIB}
    assert found <= large


@pytest.mark.parametrize(
    ("device", "overlap", "solutions", "lanes", "ahead"),
    [("cuda", True, 1, 8, 16), ("cuda", True, 3, 2, 4), ("cuda", True, 16, 1, 2),
     ("cuda", False, 16, 4, 4), ("cpu", True, 2, 4, 8), ("cpu", False, 1, 1, 1)],
)  # fmt: skip
def test_cores_limit_the_cases_that_are_graded_at_once(device, overlap, solutions, lanes, ahead):
    one = object.__new__(Sweep)
    one.device, one._overlap, one._cores = device, overlap, 8
    assert one._slots(solutions) == (lanes, ahead)


def under_way(needed, done=False):
    return SimpleNamespace(needed=needed, done=done)


@pytest.mark.parametrize(
    ("pending", "needed", "overlap", "full"),
    [
        ([], 200, True, False),  # alone it may ask for more than there is
        ([under_way(60)], 40, True, False),
        ([under_way(60)], 41, True, True),
        ([under_way(60, done=True)], 41, True, False),
        ([under_way(60, done=True)], 41, False, True),  # it is to be timed yet
        ([under_way(30), under_way(30)], 40, True, False),
        ([under_way(30), under_way(30)], 41, True, True),
        ([under_way(1)] * 4, 1, True, True),  # as many as may be
        ([under_way(60)], 0, True, False),  # a far one
    ],
)
def test_a_case_starts_once_there_is_room_beside_those_under_way(pending, needed, overlap, full):
    one = object.__new__(Sweep)
    one.memory_budget, one._overlap = MemoryBudget(DeviceMemory(lambda: IDLE + 100)), overlap
    assert one._is_full(pending, 4, needed) == full


class Keeper:
    """A worker that gives back so many bytes when released, and so many when it ends."""

    def __init__(self, memory: list[int], shared: int, context: int) -> None:
        self._memory, self._held, self.did = memory, [shared, context], []

    def release(self):
        self.did.append("released")
        self._memory[0] += self._held[0]
        self._held[0] = 0

    def close(self):
        self.release()
        self.did.append("ended")
        self._memory[0] += self._held[1]


@pytest.mark.parametrize(
    ("needed", "did", "fits"),
    [
        (10, [], True),
        (15, ["released"], True),
        (18, ["released", "released", "ended"], True),
        (30, ["released", "released", "ended"], False),
    ],
)
def test_what_costs_little_goes_first(needed, did, fits):
    """Memory that is shared, then processes."""
    left = [100]
    one = MemoryBudget(DeviceMemory(lambda: left[0]))
    kept, idle = Keeper(left, 5, 5), Keeper(left, 5, 5)
    one.workers, left[0] = [kept, idle], 10
    assert one.make(needed, [kept]) == fits
    assert (kept.did, idle.did) == ([], did)


def test_of_several_the_last_asked_gives_way_last(monkeypatch):
    free = [1000 * GIB]
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    one = MemoryBudget(DeviceMemory(lambda: free[0]))
    idle = [Keeper(free, 5, 5) for _ in range(3)]
    one.workers = idle[::-1]
    for worker in idle:
        worker.shared = 0
        with one.taken(worker, Footprint(data=0, own=0)):
            pass
    free[0] = 10
    assert one.make(18, [])
    assert [keeper.did for keeper in idle] == [["released"], ["released"], []]


@pytest.mark.parametrize(
    ("shared", "lacks", "did"),
    [
        (0, 0, []),
        (0, 1, ["released"]),
        (20, 20, []),  # the worker has these bytes already
        (20, 21, ["released"]),
        (50, 30, []),  # all of the 30 that it needs to share
        (50, 31, ["released"]),  # the rest serves nothing else
    ],
)
def test_a_case_takes_what_its_worker_lacks(shared, lacks, did):
    footprint, free = Footprint(data=10, own=8), [1000 * GIB]
    one = MemoryBudget(DeviceMemory(lambda: free[0]))
    worker, idle = Keeper(free, 0, 0), Keeper(free, 5, 5)
    worker.shared, one.workers = shared, [worker, idle]
    free[0] = footprint.graded(low_memory=False) - lacks
    with one.taken(worker, footprint):
        assert idle.did == did


def test_a_budget_is_less_than_what_is_free():
    free = [100 * GIB]
    memory = DeviceMemory(lambda: free[0], 16 * GIB)
    assert (memory.budget, memory.left, memory.limit) == (16 * GIB, 16 * GIB, 16 * GIB - IDLE)
    free[0] -= 10 * GIB
    assert (memory.left, memory.peak) == (6 * GIB, 10 * GIB)
    free[0] += 5 * GIB
    assert (memory.left, memory.peak) == (11 * GIB, 10 * GIB)
    assert DeviceMemory(lambda: free[0]).limit is None
    assert DeviceMemory(lambda: 4 * GIB, 16 * GIB).budget == 4 * GIB


# --- graded with little memory --------------------------------------------------------------------

RIGHT = """
import torch

def rotate_half(x, *, interleaved=False):
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((-b, a), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""


class PretendedGPU:
    """A GPU of so many bytes, of which each live process takes a context and its shared memory."""

    def __init__(self, total: int) -> None:
        self.total, self.sweep, self.most = total, None, 0

    def free(self) -> int:
        if self.sweep is None:
            return self.total
        workers = self.sweep.memory_budget.workers
        self.most = max(self.most, sum(worker.alive for worker in workers))
        shared = sum(worker._arena.nbytes for worker in workers if worker._arena)
        return self.total - IDLE - CONTEXT * sum(worker.alive for worker in workers) - shared


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("total", "most"), [(sys.maxsize, 3), (IDLE + 2 * CONTEXT, 1)])
@pytest.mark.slow
def test_scarce_memory_changes_no_verdict(tmp_path, fork_server, monkeypatch, total, most, overlap):
    """Only the order of the solutions: one goes through all cases after the other."""
    monkeypatch.setattr(sweep, "cores", lambda: 3)  # all solutions at once on one case
    names = "first", "second", "third"
    several = [written(tmp_path, RIGHT, handle=name) for name in names]
    gpu = PretendedGPU(total)
    with Sweep("cpu", overlap=overlap, server=fork_server, memory=DeviceMemory(gpu.free)) as one:
        gpu.sweep = one
        found = list(one.grade(HALF, CASES, several))
    assert {v.verdict for each in found for v in each.verdicts.values()} == {"PASSED"}
    together = [case for case in CASES for _ in several]
    assert [each.case for each in found] == (together if most > 1 else CASES * len(several))
    assert gpu.most == most


# --- far views ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "released"), [("cuda", 1), ("cpu", 0)])
def test_a_far_view_is_freed_before_the_next_worker_takes_one(device, released):
    far = next(case for case in HALF.cases("smoke") if case.far_bytes)
    worker = Mock(crashes=0, differentiable=())
    memory = DeviceMemory(lambda: sys.maxsize)
    one = Sweep(device, server=Mock(), memory=memory, grade=lambda *_: {})
    for case in (far, CASES[0]):
        one._grade(SimpleNamespace(case=case, summary=None), worker, 0)
    assert worker.release.call_count == released


@pytest.mark.parametrize(("gib", "held"), [(200, True), (8, False)])
def test_a_far_view_that_the_gpu_does_not_hold_is_left_out_and_named(
    gib, held, monkeypatch, capsys
):
    far, *others = [case for case in HALF.cases("smoke") if case.far_bytes]
    monkeypatch.setattr(DeviceMemory, "of", lambda *_: DeviceMemory(lambda: gib * GIB))
    monkeypatch.setattr(tiers, "_supports", lambda *_: True)
    house = [Solution(Path("house/rotate_half.py"), "rotate_half")]
    ((_, cases),) = tiers.tier_cases(house, "smoke", "cuda")
    assert (far in cases) == held
    assert len(cases) == len(list(HALF.cases("smoke"))) - (not held) * (1 + len(others))
    said = capsys.readouterr().err
    line = "study: rotate_half {} is left out: needs [0-9.]+ GiB, 8.0 GiB free\n"
    lines = "".join(line.format(case.name) for case in (far, *others))
    assert not said if held else re.fullmatch(lines, said), said
