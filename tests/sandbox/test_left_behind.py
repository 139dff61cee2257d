"""What a solution leaves behind to run later is seen: threads, handlers, callbacks."""

from __future__ import annotations

import _thread
import gc
import importlib.util
import signal
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest

from common.sandbox import seal as seals
from tests.support.sealing import broken, sealed
from tests.support.waiting import wait_until, waited_for

SETTLING = 0.1
"""Seconds in which what is seen before a thread has come to where it waits has passed, mostly."""


@pytest.fixture
def seal():
    return sealed()


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGALRM, "SIGALRM"), (signal.SIGRTMIN + 6, f"signal {signal.SIGRTMIN + 6}")],
)
def test_a_handler_is_seen(seal, number, name):
    before = signal.signal(number, lambda *_: None)
    found = broken(seal)
    signal.signal(number, before)
    assert found == f"a handler of {name} was left behind"


def test_a_thread_at_work_is_seen_and_an_idle_pool_is_not(seal):
    """Compilers keep such pools."""
    with ThreadPool(1) as threads:
        threads.apply(int)
        assert wait_until(lambda: broken(seal) is None), "once its other threads wait too"
        found = while_at_work(seal, threads.apply_async)
    assert found.startswith("a thread that neither")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        assert wait_until(lambda: broken(seal) is None), "once it waits for more"
        found = while_at_work(seal, pool.submit)
    assert found.startswith("a thread that neither")
    timer = threading.Timer(600, len)
    timer.start()
    found = broken(seal)
    timer.cancel()
    timer.join()
    assert found.startswith("a thread that neither")


def test_a_task_of_a_pool_that_is_no_python_function_is_seen(seal):
    """A solution can put any object into the pool's queue."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        lock = _thread.allocate_lock()
        lock.acquire()
        pool._work_queue.put(types.SimpleNamespace(run=lock.acquire))
        try:
            assert wait_until(lambda: not pool._work_queue.qsize())
            time.sleep(SETTLING)
            assert "a thread that neither" in wait_until(lambda: broken(seal))
        finally:
            lock.release()


def while_at_work(seal, submit):
    """Return what the seal finds while a pool has a task."""
    end = threading.Event()
    submit(end.wait)
    assert waited_for(end)
    found = broken(seal)
    end.set()
    return found


@pytest.mark.parametrize(
    "begin",
    [
        lambda wait: ThreadPool(1, wait),
        lambda wait: hold_on(ThreadPool(1), lambda pool: pool.apply_async(wait)),
        lambda wait: hold_on(ThreadPool(1), lambda pool: pool.map_async(wait, [True])),
        lambda wait: hold_on(
            ThreadPool(1), lambda pool: pool.apply_async(int, callback=lambda _: wait())
        ),
    ],
)
def test_a_pool_that_runs_no_python_is_at_work_all_the_same(begin):
    seal, lock = sealed(), _thread.allocate_lock()
    lock.acquire()
    pool = begin(lock.acquire)
    time.sleep(SETTLING)
    found = wait_until(lambda: broken(seal))
    lock.release()
    pool.terminate()
    pool.join()
    assert "a thread that neither" in found


def hold_on(pool, begin):
    begin(pool)
    return pool


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.slow
def test_a_pool_may_still_tell_a_result_that_its_caller_has(tasks):
    """The caller goes on before the pool's thread has come back to where it waits."""
    seal, switch = sealed(), sys.getswitchinterval()
    with ThreadPoolExecutor(tasks) as pool, ThreadPool(tasks) as threads:
        threads.apply(int)
        pool.submit(int).result()
        assert wait_until(lambda: broken(seal) is None)
        sys.setswitchinterval(1e-6)
        try:
            for _ in range(2000):
                for job in [pool.submit(int) for _ in range(tasks)]:
                    job.result()
                assert broken(seal) is None
                threads.apply(int)
                assert broken(seal) is None
        finally:
            sys.setswitchinterval(switch)


@pytest.mark.parametrize("ends", [True, False])
def test_threads_of_a_call_that_raised_may_end(monkeypatch, ends):
    """Where one thread of a pool raises, the caller returns while the others still work."""
    seal, end, pauses = sealed(), threading.Event(), []

    def pause(seconds):
        """Let the thread end in the third pause."""
        pauses.append(seconds)
        if ends and len(pauses) == 3:
            end.set()
            job.result()

    monkeypatch.setattr(seals, "time", types.SimpleNamespace(sleep=pause))
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(end.wait)
        assert waited_for(end)
        assert "a thread that neither" in broken(seal)
        seal.await_threads()
        assert (broken(seal) is None) == ends
        assert pauses == [seals.PAUSE] * (3 if ends else seals.WAITS)
        end.set()


LIBRARY = """
import gc

def _made(inner):
    return lambda phase, info: inner()

def callback(phase, info):
    pass

class Equal:
    def __eq__(self, other):
        return True

    def __call__(self, phase, info):
        pass

gc.callbacks.append({})
"""


@pytest.mark.parametrize(
    ("left", "within", "seen"),
    [
        ("callback", False, False),
        ("callback", True, True),
        ("_made(callback)", False, True),
        ("exec", False, True),
        ("Equal()", False, True),
    ],
)
def test_an_installed_library_may_watch_the_collector(tmp_path, monkeypatch, left, within, seen):
    """As JAX does, which TransformerEngine and CUTLASS import; a solution may not."""
    file = tmp_path / "a_library.py"
    file.write_text(LIBRARY.format(left))
    monkeypatch.setattr(gc, "callbacks", [lambda phase, info: None])
    monkeypatch.setattr(sys, "path", [str(tmp_path if within else tmp_path / "mine"), *sys.path])
    seal = sealed()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert broken(seal) == ("a callback of the garbage collector was left behind" if seen else None)
