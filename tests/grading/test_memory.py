"""The memory of a GPU, pretended: what is under way together, and what ends for more."""

import re
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from common import ops
from common.grading import supervisor, sweep
from common.grading.device import CONTEXT, GIB, IDLE, DeviceMemory, needed, tier_cases
from common.grading.supervisor import Supervisor
from common.grading.sweep import Sweep
from common.solutions import Solution
from tests.support.study import RIGHT
from tests.support.waiting import LONGEST
from tests.support.workers import written

HALF = ops.load("rotate_half")
CASES = [case for case in HALF.cases("smoke") if not case.interleaved][:4]
SOLUTIONS = [Solution(Path(f"{name}/rotate_half.py"), "rotate_half") for name in "abc"]


@pytest.mark.parametrize(("gib", "scarce"), [(141, False), (80, False), (16, True), (8, True)])
def test_the_truth_of_a_large_case_lies_on_the_host_of_a_small_gpu(gib, scarce):
    rope = ops.load("rope")
    case = max(rope.cases("board"), key=lambda each: rope.work(each, "forward").bytes)
    assert DeviceMemory(lambda: gib * GIB).needs(rope, case)[1] == scarce


WIDEST = {"4096x4096x14336-bfloat16-span", "8192x3584x18944-bfloat16-third"}


@pytest.mark.parametrize(("gib", "large"), [(16, set()), (8, WIDEST)])
def test_the_boards_cases_fit_the_cards_that_people_own(gib, large):
    """8 GiB hold all but the widest layers, with two sets of three weights."""
    several = [(op, case) for op in map(ops.load, ops.names()) for case in op.cases("board")]
    found = {case.name for op, case in several if IDLE + needed(op, case, on_host=True) > gib * GIB}
    assert found <= large


# --- workers that hold memory ---------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """A supervisor of a GPU with 40 bytes, of which a worker holds two until it is released, and
    eight until it ends."""
    alive, held = set(), set()

    class Holder:
        shared = 0

        def __init__(self, server, solution, *_):
            self.solution = solution
            alive.add(self)
            held.add(self)

        def release(self):
            held.discard(self)

        def close(self):
            self.release()
            alive.discard(self)

    monkeypatch.setattr(supervisor, "Worker", Holder)
    memory = DeviceMemory(lambda: IDLE + 40 - 8 * len(alive) - 2 * len(held))
    one = Supervisor(Mock(), memory)
    one.alive = alive
    return one


@pytest.mark.parametrize(("needed", "ended"), [(10, ""), (16, ""), (17, "a"), (IDLE + 40, "abc")])
def test_of_idle_processes_the_least_recently_used_end_first(small, needed, ended):
    """After the memory that they share, which costs less."""
    with ExitStack() as together:
        workers = [together.enter_context(small.lent(solution)) for solution in SOLUTIONS]
    for solution in SOLUTIONS:
        with small.lent(solution) as worker:
            assert worker in workers, "a free one is lent again"
    small.make_room(IDLE + needed)
    assert {each.solution.handle for each in workers if each not in small.alive} == set(ended)


def test_a_case_waits_until_its_memory_fits_beside_those_under_way(small):
    beside, begun = threading.Event(), threading.Event()

    def lend():
        with small.lent(SOLUTIONS[1], 20):
            beside.set()
        with small.lent(SOLUTIONS[1], 1000):  # alone it may need more than there is
            begun.set()

    thread = threading.Thread(target=lend)
    with small.lent(SOLUTIONS[0], 20):
        thread.start()
        assert beside.wait(LONGEST)
        assert not begun.wait(0.1)
    assert begun.wait(LONGEST)
    thread.join()


# --- graded with little memory --------------------------------------------------------------------


class PretendedGPU:
    """A GPU of so many bytes, of which each live process takes a context and its shared memory."""

    def __init__(self, total: int) -> None:
        self.total, self.sweep, self.most = total, None, 0

    def free(self) -> int:
        if self.sweep is None:
            return self.total
        workers = self.sweep.supervisor.workers
        self.most = max(self.most, sum(worker.alive for worker in workers))
        held = sum(CONTEXT * worker.alive + worker.shared for worker in workers)
        return self.total - IDLE - held


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
    assert (gpu.most >= most) if most > 1 else (gpu.most == most)


# --- far views ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gib", "held"), [(200, True), (8, False)])
def test_a_far_view_that_the_gpu_cannot_hold_is_left_out_and_named(gib, held, monkeypatch, capsys):
    far, *others = [case for case in HALF.cases("smoke") if case.far_bytes]
    monkeypatch.setattr(DeviceMemory, "of", lambda *_: DeviceMemory(lambda: gib * GIB))
    monkeypatch.setattr("common.grading.device.no_bfloat16", lambda device: None)
    house = [Solution(Path("house/rotate_half.py"), "rotate_half")]
    ((_, cases),) = tier_cases(house, "smoke", "cuda")
    assert (far in cases) == held
    assert len(cases) == len(list(HALF.cases("smoke"))) - (not held) * (1 + len(others))
    said = capsys.readouterr().err
    line = "study: rotate_half {} is left out: needs [0-9.]+ GiB, 8.0 GiB free\n"
    lines = "".join(line.format(case.name) for case in (far, *others))
    assert not said if held else re.fullmatch(lines, said), said
