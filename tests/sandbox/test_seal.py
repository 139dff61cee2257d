"""What a solution replaced or left behind is seen; what honest code does is not taken for it."""

from __future__ import annotations

import _thread
import contextlib
import functools
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from common.paths import ROOT
from common.sandbox import clock, poison, process, seal
from common.sandbox.seal import part_of
from tests.support.sealing import broken, sealed
from tests.support.waiting import wait_until


class Base:
    def inherited(self):
        return 1


class Sealed(Base):
    def own(self):
        return 2


module = types.ModuleType("module")


def function():
    return 1


module.function, module.state = function, 1
OWN = part_of(module, ["function"]), part_of(Sealed, dir(Sealed))


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        (module, "function", "module.function"),
        (Sealed, "own", "Sealed.own"),
        (Sealed, "inherited", "Sealed.inherited"),
        (torch.Tensor, "copy_", "Tensor.copy_"),
        (torch.cuda.Event, "elapsed_time", "Event.elapsed_time"),
        (torch.autograd, "grad", "torch.autograd.grad"),
        (torch, "empty", "torch.empty"),
        (time, "perf_counter_ns", "time.perf_counter_ns"),
        (clock, "host_time", "common.sandbox.clock.host_time"),
        (clock, "WAKING", "common.sandbox.clock.WAKING"),
        (clock.Clock, "take_samples", "Clock.take_samples"),
        (process, "REQUESTS", "common.sandbox.process.REQUESTS"),
        (poison.Poison, "__torch_dispatch__", "Poison.__torch_dispatch__"),
        (module, "state", None),
        (Sealed, "another", None),
    ],
)
def test_what_is_replaced_is_named(owner, name, said, monkeypatch):
    made = sealed(*OWN, *seal.sealed_parts())
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


# --- honest code ----------------------------------------------------------------------------------

SETTINGS = [
    (torch.set_default_dtype, torch.float64, torch.float32),
    (torch.set_float32_matmul_precision, "medium", "highest"),
    (torch.use_deterministic_algorithms, True, False),
    (torch.set_grad_enabled, False, True),
    (torch.autograd.set_detect_anomaly, True, False),
    (torch.set_default_device, "cpu", None),
    (torch.manual_seed, 1, 2),
]


def test_a_setting_of_torchs_is_not_accused():
    for change, value, before in SETTINGS:
        made = sealed(*OWN, *seal.sealed_parts())
        change(value)
        found = broken(made)
        change(before)
        assert found is None, change


@pytest.mark.slow
def test_torch_compile_is_not_accused():
    """In a process that has not imported `torch._dynamo` before."""
    source = """
import sys
from common.sandbox import process, seal
made = seal.Seal(seal.sealed_parts())
assert "torch._dynamo" not in sys.modules
import torch
x = torch.ones(3, requires_grad=True)
torch.compile(lambda x: x.sin() * 2, backend="aot_eager")(x).sum().backward()
made.check()
"""
    subprocess.run([sys.executable, "-c", source], check=True, cwd=ROOT)
