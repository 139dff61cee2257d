"""The memory of a GPU, pretended: who runs together, whose process ends, who is asked again."""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.grading import room, tiers
from common.grading import sweep as sweeps
from common.grading.graded import Graded, TooLarge
from common.grading.memory import CONTEXT, GIB, IDLE, Footprint, Memory
from common.grading.room import Room
from common.grading.second_try import SecondTry
from common.grading.sweep import Sweep
from common.solutions import Solution

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))[:4]
RIGHT = """
import torch

def rotate_half(x, *, interleaved=False):
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((-b, a), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""
GREEDY = """
import torch

def rotate_half(x, *, interleaved=False):
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 10.00 GiB. GPU 0 has a total capacity of 15.99 GiB"
        " of which 8.50 GiB is free. Including non-PyTorch memory, this process has ..."
    )
"""


class PretendedGPU:
    """A GPU of so many bytes, of which each live process takes a context and its shared memory."""

    def __init__(self, total: int) -> None:
        self.total, self.sweep, self.most = total, None, 0

    def free(self) -> int:
        if self.sweep is None:
            return self.total
        workers = self.sweep.room.workers
        self.most = max(self.most, sum(worker.alive for worker in workers))
        shared = sum(worker._arena.nbytes for worker in workers if worker._arena)
        return self.total - IDLE - CONTEXT * sum(worker.alive for worker in workers) - shared


@pytest.fixture
def solutions(tmp_path):
    names = ["first", "second", "third"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "rotate_half.py").write_text(RIGHT)
    return [Solution(tmp_path / name / "rotate_half.py", "rotate_half") for name in names]


@pytest.fixture
def on_a_gpu(fork_server):
    """Return a function that grades on a pretended GPU, and the GPU."""

    def run(solutions, total, cases=CASES, overlap=False):
        gpu = PretendedGPU(total)
        with Sweep("cpu", overlap=overlap, server=fork_server, memory=Memory(gpu.free)) as one:
            gpu.sweep = one
            found = list(one.grade(HALF, cases, solutions))
        return found, gpu

    return run


def verdicts(found):
    return {
        (one.solution.handle, one.case.name): [v.verdict for v in one.verdicts.values()]
        for one in found
    }


@pytest.mark.parametrize("overlap", [False, True])
def test_scarce_memory_changes_no_verdict(on_a_gpu, solutions, overlap):
    found, ample = on_a_gpu(solutions, sys.maxsize, overlap=overlap)
    again, scarce = on_a_gpu(solutions, IDLE + 2 * CONTEXT, overlap=overlap)
    assert verdicts(again) == verdicts(found)
    assert set(map(tuple, verdicts(found).values())) == {("PASSED", "PASSED")}
    assert ample.most == len(solutions)
    assert scarce.most == 1, "one process at a time"
    assert [one.case for one in found] == [case for case in CASES for _ in solutions]
    assert [one.case for one in again] == CASES * len(solutions), "one solution after the other"


def test_who_runs_out_is_asked_again_alone(on_a_gpu, solutions):
    solutions[1].path.write_text(GREEDY)
    found, _ = on_a_gpu(solutions, sys.maxsize, CASES[:1])
    assert [tuple(v.verdict for v in one.verdicts.values()) for one in found] == [
        ("PASSED", "PASSED"), ("RUNTIME_ERROR", "RUNTIME_ERROR"), ("PASSED", "PASSED"),
    ]  # fmt: skip
    reasons = {verdict.reason for verdict in found[1].verdicts.values()}
    assert reasons == {"out of memory: asked for 10.00 GiB, 8.50 GiB of 15.99 GiB free"}
    assert found[1].worker.deaths == []


ONCE = """
import pathlib
import torch

def rotate_half(x, *, interleaved=False):
    tried = pathlib.Path(__file__).with_name("tried")
    if not tried.exists():
        raise RuntimeError("CUDA driver error: out of memory")
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""


def test_memory_that_others_took_is_no_failure(on_a_gpu, solutions, monkeypatch):
    """The second time, alone, there is enough."""
    solutions[0].path.write_text(ONCE)
    alone = SecondTry.verdicts

    def noted(self, worker):
        worker.solution.path.with_name("tried").touch()
        return alone(self, worker)

    monkeypatch.setattr(SecondTry, "verdicts", noted)
    (found,), _ = on_a_gpu(solutions[:1], sys.maxsize, CASES[:1])
    assert [verdict.verdict for verdict in found.verdicts.values()] == ["PASSED", "PASSED"]


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_problem_that_does_not_fit_is_made_again_alone(on_a_gpu, solutions, monkeypatch, fails):
    """Where it does not fit then either, the case is left out, once, and the others go on."""
    make, tries = sweeps.make_problem, []

    def made(op, case, seed, device, frugal):
        if case == CASES[0]:
            tries.append(frugal)
            if len(tries) <= fails:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")
        return make(op, case, seed, device, frugal)

    monkeypatch.setattr(sweeps, "make_problem", made)
    found, _ = on_a_gpu(solutions, sys.maxsize, CASES[:2])
    assert tries == [False, False, True][: max(fails + 1, 2)][:3]
    left = [one for one in found if isinstance(one, TooLarge)]
    assert [(one.op.name, one.case, one.reason) for one in left] == [
        ("rotate_half", CASES[0], "out of memory")
    ] * (fails == 3)
    others = [one for one in found if isinstance(one, Graded)]
    assert len(others) == len(solutions) * (2 - (fails == 3))


def test_the_shared_memory_of_a_case_that_does_not_fit_is_nobodys_failure(
    on_a_gpu, solutions, monkeypatch
):
    reserve = sweeps.Worker.arena

    def arena(self, nbytes):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    monkeypatch.setattr(sweeps.Worker, "arena", arena)
    (found,), _ = on_a_gpu(solutions, sys.maxsize, CASES[:1])
    assert isinstance(found, TooLarge)
    monkeypatch.setattr(sweeps.Worker, "arena", reserve)


# --- who runs together ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gib", "together", "frugal"), [(141, 100, False), (80, 50, False), (16, 1, True), (8, 1, True)]
)
def test_a_large_case_leaves_room_for_fewer(gib, together, frugal):
    rope = ops.load("rope")
    case = max(rope.cases("board"), key=lambda each: rope.work(each, "forward").bytes)
    footprint, memory = Footprint.by(rope, case), Memory(lambda: gib * GIB)
    assert footprint.frugal(memory.budget) == frugal
    most = Room(memory).together(footprint, timed=True)
    assert most >= together if together > 1 else most < 12


@pytest.mark.parametrize(("gib", "large"), [(16, set()), (8, {"4096x4096x14336-bfloat16-span"})])
def test_the_boards_cases_fit_the_cards_that_people_own(gib, large):
    """8 GiB hold all but the widest layer, with two sets of three weights."""
    several = [(op, case) for op in map(ops.load, ops.names()) for case in op.cases("board")]
    found = {case.name for op, case in several if not Footprint.by(op, case).fits(gib * GIB)}
    assert found <= large


@pytest.mark.parametrize(
    ("free", "solutions", "overlap", "lanes", "ahead"),
    [(1e6, 1, True, 8, 16), (1e6, 3, True, 2, 4), (1e6, 16, True, 1, 2), (3.5, 1, True, 3, 6),
     (3.5, 2, True, 1, 2), (0.1, 1, True, 1, 2), (1e6, 16, False, 4, 4), (2.5, 1, False, 2, 2),
     (0.1, 1, False, 1, 1)],
)  # fmt: skip
def test_lanes_have_the_memory_for_usual_cases(free, solutions, overlap, lanes, ahead):
    """`free` is in units of what a case takes of one solution on average."""
    each = [Room.needed(Footprint.by(HALF, case), 1) for case in CASES]
    one = object.__new__(Sweep)
    one.room = Room(Memory(lambda: int(free * statistics.fmean(each))))
    one.device, one._overlap, one._cores = "cuda", overlap, 8
    assert one._lanes(HALF, CASES, solutions) == (lanes, ahead)
    far = next(case for case in HALF.cases("smoke") if case.span)
    found = one._lanes(HALF, [*CASES, far], solutions)
    assert found == (lanes, ahead), "it waits for the others"


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
    one.room, one._overlap = Room(Memory(lambda: IDLE + 100)), overlap
    assert one._is_full(pending, 4, needed) == full


def test_a_case_under_way_takes_its_problem_and_all_solutions():
    footprint = Footprint(data=10, own=8)
    assert Room.needed(footprint, 3) == 25 + 3 * (CONTEXT + 70 + 10)
    assert Room.needed(Footprint(data=10, own=8, far=True), 3) == 0


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
    free = [100]
    one = Room(Memory(lambda: free[0]))
    kept, idle = Keeper(free, 5, 5), Keeper(free, 5, 5)
    one.workers = [kept, idle]
    free[0] = 10
    assert one.make(needed, [kept]) == fits
    assert (kept.did, idle.did) == ([], did)


@pytest.mark.parametrize(
    ("shared", "cached", "lacks", "did"),
    [
        (0, 0, 0, []),
        (0, 0, 1, ["released"]),
        (20, 0, 20, []),  # the worker has these bytes already
        (20, 0, 21, ["released"]),
        (50, 0, 30, []),  # all of the 30 that it needs to share
        (50, 0, 31, ["released"]),  # the rest serves nothing else
        (0, 40, 40, []),  # copies of results, from the cache
        (0, 50, 41, ["released"]),  # a process takes nothing from it
    ],
)
def test_a_case_takes_what_its_worker_and_the_cache_lack(shared, cached, lacks, did, monkeypatch):
    footprint, free = Footprint(data=10, own=8), [1000 * GIB]
    one = Room(Memory(lambda: free[0]))
    worker, idle = Keeper(free, 0, 0), Keeper(free, 5, 5)
    worker.shared, one.workers = shared, [worker, idle]
    monkeypatch.setattr(room, "_cached", lambda: cached)
    free[0] = footprint.graded(frugal=False) - lacks
    with one.taken(worker, footprint):
        assert idle.did == did


@pytest.mark.parametrize(
    ("needed", "alone", "cached", "did"),
    [
        (15, 10, 5, []),  # 10 are left, and 5 are in the cache
        (15, 11, 5, ["released"]),  # which serves no other process
        (16, 10, 5, ["released"]),
        (15, None, 5, ["released"]),
    ],
)
def test_the_cache_serves_the_harness_alone(needed, alone, cached, did, monkeypatch):
    free = [100]
    one = Room(Memory(lambda: free[0]))
    idle = Keeper(free, 6, 6)
    one.workers = [idle]
    free[0] = 10
    monkeypatch.setattr(room, "_cached", lambda: cached)
    assert one.make(needed, [], alone) and idle.did == did


def test_a_budget_is_less_than_what_is_free():
    free = [100 * GIB]
    memory = Memory(lambda: free[0], 16 * GIB)
    assert (memory.budget, memory.left, memory.limit) == (16 * GIB, 16 * GIB, 16 * GIB - IDLE)
    free[0] -= 10 * GIB
    assert (memory.left, memory.peak) == (6 * GIB, 10 * GIB)
    free[0] += 5 * GIB
    assert (memory.left, memory.peak) == (11 * GIB, 10 * GIB)
    assert Memory(lambda: free[0]).limit is None
    assert Memory(lambda: 4 * GIB, 16 * GIB).budget == 4 * GIB


# --- far views ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "released"), [("cuda", 1), ("cpu", 0)])
def test_a_far_view_is_freed_before_the_next_worker_takes_one(device, released):
    far = next(case for case in HALF.cases("smoke") if case.span)
    seen = []
    worker = SimpleNamespace(release=lambda: seen.append(1))
    memory = Memory(lambda: sys.maxsize)
    one = Sweep(device, server=SimpleNamespace(), memory=memory, grade=lambda *_: {})
    for case in (far, CASES[0]):
        one._grade(SimpleNamespace(case=case), worker, 0)
    assert len(seen) == released


@pytest.mark.parametrize(("gib", "held"), [(200, True), (8, False)])
def test_a_far_view_that_the_gpu_does_not_hold_is_left_out_and_named(
    gib, held, monkeypatch, capsys
):
    (far,) = [case for case in HALF.cases("smoke") if case.span]
    monkeypatch.setattr(Memory, "of", lambda *_: Memory(lambda: gib * GIB))
    monkeypatch.setattr(tiers, "_has", lambda *_: True)
    house = [Solution(Path("house/rotate_half.py"), "rotate_half")]
    ((_, cases),) = tiers.tier_cases(house, "smoke", "cuda")
    assert (far in cases) == held
    assert len(cases) == len(list(HALF.cases("smoke"))) - (not held)
    said = capsys.readouterr().err
    line = rf"study: rotate_half {far.name} is left out: needs [0-9.]+ GiB, 8.0 GiB free\n"
    assert not said if held else re.fullmatch(line, said), said
