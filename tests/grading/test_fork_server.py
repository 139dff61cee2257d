"""A fork server that ends: its workers end with it, another is started, and the cause is found."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from common import ops
from common.grading.fork_server import ForkServer
from common.grading.sweep import Sweep
from common.measure import timing
from common.measure.stopwatch import Stopwatch
from common.processes import VISIBLE
from common.solutions import Solution
from tests.support.corpora import baseline_of
from tests.support.processes import ends
from tests.support.waiting import LONGEST, STEP

HALF = """
import torch

def rotate_half(x):
    {}
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""
HONEST = HALF.format("pass")


COUNTS = """
import gc

def rotate_half(x):
    raise NotImplementedError(f"{gc.get_freeze_count()} objects")
"""


def test_what_a_worker_inherits_is_no_work_for_its_collections(halves, fork_server):
    with Sweep("cpu", server=fork_server) as sweep:
        ((_, found),) = halves(sweep, {"counts": COUNTS}, 1)
    assert int(found.reason.split()[0]) > 100_000


THREADS = """
import os
import numpy

def rotate_half(x):
    factor = numpy.ones((512, 512), dtype=numpy.float32)
    numpy.matmul(factor, factor)
    raise NotImplementedError(f"{len(os.listdir('/proc/self/task'))} threads")
"""


def test_a_product_of_numpy_takes_one_thread(halves, fork_server):
    with Sweep("cpu", server=fork_server) as sweep:
        ((_, found),) = halves(sweep, {"threads": THREADS}, 1)
    assert found.reason == "1 threads"


SEEN = """
import os

def rotate_half(x):
    raise NotImplementedError(f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r} is visible")
"""


def test_a_worker_without_a_gpu_sees_none_on_a_machine_with_one(halves, monkeypatch):
    monkeypatch.setenv(VISIBLE, "0,1")
    with Sweep("cpu") as sweep:
        ((_, found),) = halves(sweep, {"seen": SEEN}, 1)
    assert found.reason == "'' is visible"


@pytest.mark.slow
def test_workers_die_with_their_server(tmp_path):
    server = ForkServer("cpu")
    _, pid, connection = server.fork()
    os.kill(server._process.pid, 9)
    assert ends(pid)
    connection.close()


@pytest.fixture
def halves(tmp_path):
    """Return a function that grades several sources on some cases, all at the same time."""

    def write(name, source):
        path = tmp_path / name / "rotate_half.py"
        path.parent.mkdir()
        path.write_text(source)
        return Solution(path, "rotate_half")

    def start(sweep, several, count):
        op = ops.load("rotate_half")
        plain = (case for case in op.cases("smoke") if not case.interleaved)
        cases = itertools.islice(plain, count)
        graded = sweep.grade(op, cases, [write(*one) for one in several.items()])
        return [(each.solution.handle, each.verdicts["forward"]) for each in graded]

    return start


@pytest.mark.slow
def test_a_server_that_ended_is_started_again(halves):
    with Sweep("cpu") as sweep:
        assert {v.verdict for _, v in halves(sweep, {"one": HONEST}, 1)} == {"PASSED"}
        os.kill(sweep._server._process.pid, 9)
        assert {v.verdict for _, v in halves(sweep, {"two": HONEST}, 1)} == {"PASSED"}


@pytest.mark.slow
def test_a_timed_solution_is_not_blamed_for_a_server_that_had_ended(tmp_path, monkeypatch):
    short = {"gpu": 0.02, "host": 0.02}
    monkeypatch.setattr("common.measure.timing.SECONDS", {"gpu": short, "host": short})
    monkeypatch.setattr(Stopwatch, "forged", lambda *_: None)  # whatever else the machine does
    op = ops.load("rotate_half")
    path = tmp_path / "rotate_half.py"
    path.write_text(HONEST)
    with Sweep("cpu") as sweep:
        cases = [next(op.cases("smoke"))]
        (graded,) = sweep.grade(op, cases, [Solution(path, "rotate_half")])
        os.kill(sweep._server._process.pid, 9)
        assert sweep._server._process.wait(LONGEST)
        times = timing.time_case(graded, baseline_of(sweep, op), "forward", sweep.room)
        assert times["host"]["solution"]


@pytest.mark.slow
def test_a_solution_that_ends_the_server_is_found_and_the_others_pass(halves, tmp_path):
    """The test ends it at the solution's wish: the kernel may forbid the solution to do it."""
    wish = tmp_path / "wish"
    line = f"import os, time; open({str(wish)!r} + str(os.getppid()), 'w'); time.sleep(100)"
    with Sweep("cpu") as sweep, ThreadPoolExecutor() as pool:

        def fulfil():
            """A wish names the server that it is about: none is about the next one."""
            ended = set()
            while not graded.wait(STEP):
                server = sweep._server._process.pid
                if server not in ended and wish.with_name(f"wish{server}").exists():
                    os.kill(server, 9)
                    ended.add(server)
            return len(ended)

        graded = threading.Event()
        fulfilled = pool.submit(fulfil)
        sources = {"honest": HONEST, "ends_it": HALF.format(line)}
        try:
            found = halves(sweep, sources, 2)
        finally:
            graded.set()
        assert fulfilled.result() >= 2, "once beside others, once alone"
    assert {v.verdict for handle, v in found if handle == "honest"} == {"PASSED"}
    assert {v.verdict for handle, v in found if handle == "ends_it"} == {"TAMPERED"}
    assert all("it ended the fork server" in v.reason for h, v in found if h == "ends_it")
