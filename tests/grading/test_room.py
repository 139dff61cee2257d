"""The memory of a GPU, pretended: who runs together, whose process ends, who is asked again."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.grading import sweep as sweeps
from common.grading import tiers
from common.grading.graded import Graded, TooLarge
from common.grading.memory import CONTEXT, GIB, IDLE, Memory
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
def on_a_gpu(fork_server, monkeypatch):
    """Return a function that grades on a pretended GPU, and the GPU.

    There are so many cores that all solutions are graded at once on one case.
    """
    monkeypatch.setattr(sweeps, "cores", lambda: 3)

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
@pytest.mark.slow
def test_scarce_memory_changes_no_verdict(on_a_gpu, solutions, overlap):
    found, ample = on_a_gpu(solutions, sys.maxsize, overlap=overlap)
    again, scarce = on_a_gpu(solutions, IDLE + 2 * CONTEXT, overlap=overlap)
    assert verdicts(again) == verdicts(found)
    assert set(map(tuple, verdicts(found).values())) == {("PASSED", "PASSED")}
    assert ample.most == len(solutions)
    assert scarce.most == 1, "one process at a time"
    assert [one.case for one in found] == [case for case in CASES for _ in solutions]
    assert [one.case for one in again] == CASES * len(solutions), "one solution after the other"


@pytest.mark.slow
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
@pytest.mark.slow
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
    far, *others = [case for case in HALF.cases("smoke") if case.span]
    monkeypatch.setattr(Memory, "of", lambda *_: Memory(lambda: gib * GIB))
    monkeypatch.setattr(tiers, "_has", lambda *_: True)
    house = [Solution(Path("house/rotate_half.py"), "rotate_half")]
    ((_, cases),) = tiers.tier_cases(house, "smoke", "cuda")
    assert (far in cases) == held
    assert len(cases) == len(list(HALF.cases("smoke"))) - (not held) * (1 + len(others))
    said = capsys.readouterr().err
    line = "study: rotate_half {} is left out: needs [0-9.]+ GiB, 8.0 GiB free\n"
    lines = "".join(line.format(case.name) for case in (far, *others))
    assert not said if held else re.fullmatch(lines, said), said
