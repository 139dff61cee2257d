"""The fork server: one for all kinds of workers, which end with it and start again with another."""

import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from common import ops
from common.grading.fork_server import ForkServer, ServerEnded
from common.grading.sweep import Sweep
from common.processes import VISIBLE
from common.wire import STAND_IN
from tests.support.processes import alive, ends
from tests.support.waiting import STEP, wait_until
from tests.support.workers import HALF, written


@pytest.fixture
def servers(monkeypatch, request):
    """Return a function that starts a fork server in an environment of the test's own."""
    monkeypatch.setenv("TEST_OF_FORK_SERVERS", request.node.name)
    with contextlib.ExitStack() as stack:

        def start(**options):
            return stack.enter_context(contextlib.closing(ForkServer("cpu", **options)))

        yield start


def fork(server: ForkServer) -> tuple[int, int]:
    """Return the ids of the server's process and of one that it forked."""
    *pids, connection = server.fork()
    connection.close()
    return tuple(pids)


@pytest.mark.slow
def test_one_process_serves_all_kinds_until_the_last_is_closed(servers):
    one, other = servers(), servers(target=STAND_IN)
    pid, first = fork(one)
    same, second, connection = other.fork()
    assert pid == same
    one.close()
    with connection:  # a worker ends where its socket is closed
        assert ends(first) and alive(second) and alive(pid)
    with pytest.raises(ServerEnded):
        one.fork()
    other.close()
    assert ends(pid)


@pytest.mark.slow
def test_a_process_that_is_killed_takes_its_workers_along_and_starts_again(servers):
    one, other = servers(), servers()
    (server, first), (_, second) = fork(one), fork(other)
    os.kill(server, signal.SIGKILL)
    assert ends(first) and ends(second)
    with pytest.raises(ServerEnded):
        one.reap(server, first)
    (again, first, mine), (too, second, its) = one.fork(), other.fork()
    assert server != again == too
    with mine, its:  # a worker whose socket is closed would end by itself
        assert one.reap(again, first) == other.reap(again, second) == -signal.SIGKILL


@pytest.mark.slow
def test_a_separate_server_goes_on_if_the_others_is_killed(servers):
    """A worker that compiles may end its server while a solution is tried again alone."""
    one, other = servers(), servers(target=STAND_IN)
    one.separate()
    (own, _, connection), (shared, _) = one.fork(), fork(other)
    os.kill(shared, signal.SIGKILL)
    with connection:
        assert own != shared and one.runs(own)
        one.separate()
        assert one.runs(own), "it is separate already"


@pytest.mark.slow
def test_no_worker_holds_the_socket_of_the_server(servers):
    """A solution that sent an order there would have the server end another's process."""
    server, worker, connection = servers().fork()
    assert sockets(server)
    assert wait_until(lambda: sockets(server).isdisjoint(sockets(worker))), "it begins with it"
    assert sockets(worker)
    connection.close()


def sockets(pid: int) -> set[str]:
    """Return the sockets that a process holds, as `socket:[1]`."""
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return {link for link in links if link.startswith("socket:")}


INHERITED = """
import gc
import os
import numpy

def rotate_half(x):
    factor = numpy.ones((512, 512), dtype=numpy.float32)
    numpy.matmul(factor, factor)
    frozen = gc.get_freeze_count() > 100_000
    threads = len(os.listdir("/proc/self/task"))
    raise NotImplementedError(f"{frozen} {threads} {os.environ['CUDA_VISIBLE_DEVICES']!r}")
"""


def test_a_worker_collects_no_inherited_object_has_one_thread_and_sees_no_gpu(halves, monkeypatch):
    monkeypatch.setenv(VISIBLE, "0,1")
    with Sweep("cpu") as sweep:
        ((_, found),) = halves(sweep, {"inherits": INHERITED}, 1)
    assert found.reason == "True 1 ''"


@pytest.fixture
def halves(tmp_path):
    """Return a function that grades several sources on some cases, all at the same time."""

    def start(sweep, several, count):
        op = ops.load("rotate_half")
        cases = [case for case in op.cases("smoke") if not case.interleaved][:count]
        sources = [written(tmp_path, text, handle=name) for name, text in several.items()]
        graded = sweep.grade(op, cases, sources)
        return [(each.solution.handle, each.verdicts["forward"]) for each in graded]

    return start


@pytest.mark.slow
def test_a_solution_that_ends_the_server_is_found_and_the_others_pass(halves, tmp_path):
    """The test ends it at the solution's wish: the kernel may forbid the solution to do it."""
    wish = f"open({str(tmp_path)!r} + '/wish' + str(os.getppid()), 'w')"
    with Sweep("cpu") as sweep, ThreadPoolExecutor() as pool:

        def fulfil():
            """A wish names the server that it is about: none is about the next one."""
            ended = set()
            while not graded.wait(STEP):
                for path in set(tmp_path.glob("wish*")) - ended:
                    os.kill(int(path.name.removeprefix("wish")), signal.SIGKILL)
                    ended.add(path)
            return len(ended)

        graded = threading.Event()
        fulfilled = pool.submit(fulfil)
        sources = {
            "honest": HALF.format("pass"),
            "ends_it": HALF.format(f"import os, time; {wish}; time.sleep(100)"),
        }
        try:
            found = halves(sweep, sources, 2)
        finally:
            graded.set()
        assert fulfilled.result() >= 2, "once beside others, once alone"
    assert {v.verdict for handle, v in found if handle == "honest"} == {"PASSED"}
    assert {v.verdict for handle, v in found if handle == "ends_it"} == {"TAMPERED"}
    assert all("it ended the fork server" in v.reason for h, v in found if h == "ends_it")
