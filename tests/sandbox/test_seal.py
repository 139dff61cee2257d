"""What a solution replaced or left behind is seen; the honest corpus has what is not accused."""

import _thread
import contextlib
import functools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from common.sandbox import clock, process, seal
from common.sandbox.seal import Seal, part_of
from common.verdicts import Failure
from tests.support.waiting import wait_until


class Before:
    """The threads that were there before and have not ended: another may get the number of one."""

    def __init__(self):
        self.known = dict.fromkeys(sys._current_frames())
        self.known |= {each.ident: each for each in threading.enumerate()}

    def __contains__(self, ident):
        thread = self.known.get(ident)
        return ident in self.known and (thread is None or thread.is_alive())


def sealed(*parts):
    """Return a seal that ignores this process's own threads: a worker has none."""
    seal = Seal(parts)
    seal.threads = Before()
    return seal


def broken(seal):
    """Return what the check says; None where it finds nothing."""
    try:
        seal.check()
    except Failure as refused:
        return refused.reason
    return None


class Base:
    def inherited(self):
        return 1


class Sealed(Base):
    pass


OWN = part_of(Sealed, dir(Sealed))


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [(Sealed, "inherited", "Sealed.inherited"), (torch.Tensor, "copy_", "Tensor.copy_"),
     (torch.cuda.Event, "elapsed_time", "Event.elapsed_time"),
     (torch.autograd, "grad", "torch.autograd.grad"), (torch, "empty", "torch.empty"),
     (time, "perf_counter_ns", "time.perf_counter_ns"),
     (clock, "WAKING", "common.sandbox.clock.WAKING"),
     (clock.Clock, "take_samples", "Clock.take_samples"),
     (process, "REQUESTS", "common.sandbox.process.REQUESTS"), (Sealed, "another", None)],
)  # fmt: skip
def test_what_is_replaced_is_named(owner, name, said, monkeypatch):
    made = sealed(OWN, *seal.sealed_parts())
    assert broken(made) is None
    monkeypatch.setattr(owner, name, functools.partial(len), raising=False)
    assert broken(made) == (said and f"{said} was replaced")


@pytest.mark.parametrize("mode", [TorchFunctionMode, TorchDispatchMode])
def test_a_mode_is_seen(mode):
    made = sealed()
    with mode():
        assert broken(made) == "a mode was left behind"
    with torch.device("cpu"):  # as torch.set_default_device leaves it
        assert broken(made) is None


def idle_pools():
    with ThreadPool(1) as threads, ThreadPoolExecutor(1) as executor:
        threads.apply(int)
        executor.submit(int).result()
        yield


def a_timer():
    timer = threading.Timer(600, len)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()
    timer.join()


def a_thread_without_an_object():
    lock = _thread.allocate_lock()
    lock.acquire()
    _thread.start_new_thread(lambda: lock.acquire(), ())
    yield
    lock.release()


@pytest.mark.parametrize(
    ("begin", "seen"), [(idle_pools, False), (a_timer, True), (a_thread_without_an_object, True)]
)
def test_a_thread_of_no_pool_is_seen(begin, seen):
    """Compilers keep pools."""
    made = sealed()
    with contextlib.contextmanager(begin)():
        found = wait_until(lambda: broken(made)) if seen else broken(made)
    assert found == ("a thread that belongs to no pool was left behind" if seen else None)
