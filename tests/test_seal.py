"""What a solution replaced is seen, and what honest code does is not taken for it."""

from __future__ import annotations

import gc
import importlib.util
import signal
import sys
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest
import torch
import torch._dynamo  # as process.py does: it replaces torch.manual_seed when it is imported
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from common.sandbox import instances, namespaces, process
from common.sandbox import seal as seals
from common.sandbox.seal import Seal


class Base:
    def inherited(self):
        return 1

    @property
    def value(self):
        return 1


class Sealed(Base):
    state = 3

    def own(self):
        return 2


module = types.ModuleType("module")


def function():
    return 1


def sealed(*owners):
    """Return a seal that ignores this process's own threads: a worker has none."""
    seal, before = Seal.of(owners), {*sys._current_frames()}
    frames = sys._current_frames
    return seal._replace(frames=lambda: {k: v for k, v in frames().items() if k not in before})


@pytest.fixture
def seal():
    module.function, module.state = function, 1
    return sealed(module, Sealed, torch.Tensor, time)


def test_nothing_is_broken_at_first(seal):
    assert seal.broken() is None


@pytest.mark.parametrize(
    ("owner", "name", "value", "said"),
    [
        (module, "function", len, "module.function was replaced"),
        (Sealed, "own", len, "Sealed.own was replaced"),
        (Sealed, "inherited", len, "Sealed.inherited was replaced"),
        (Base, "inherited", len, "Base.inherited was replaced"),
        (Base, "value", 1, "Base.value was replaced"),
        (torch.Tensor, "copy_", len, "torch.Tensor.copy_ was replaced"),
        (time, "perf_counter_ns", len, "time.perf_counter_ns was replaced"),
        (module, "state", 2, None),
        (module, "another", len, None),
        (Sealed, "state", 4, None),
        (Sealed, "another", len, None),
    ],
)
def test_what_is_replaced_is_named(owner, name, value, said, seal, monkeypatch):
    monkeypatch.setattr(owner, name, value, raising=False)
    broken = seal.broken()
    assert broken is None if said is None else broken.endswith(said)


@pytest.fixture
def entries():
    """What is behind a table of the module."""
    entries = {"first": function}
    module.table = types.MappingProxyType(entries)
    yield entries
    del module.table


def test_another_table_of_functions_is_seen(entries, seal, monkeypatch):
    assert seal.broken() is None
    monkeypatch.setattr(module, "table", types.MappingProxyType(dict(entries)))
    assert seal.broken() == "module.table was replaced"


def test_another_entry_of_a_table_is_seen(entries, seal):
    """Python has a way to the dictionary of a read-only mapping."""
    (behind,) = gc.get_referents(module.table)
    behind["first"] = len
    assert seal.broken() == "module.table.first was replaced"


def test_other_code_in_the_same_function_is_seen(seal, monkeypatch):
    monkeypatch.setattr(function, "__code__", (lambda: 2).__code__)
    assert seal.broken() == "module.function was replaced"


def test_a_trace_function_is_seen(seal):
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        found = seal.broken()
    finally:
        sys.settrace(before)
    assert found == "a trace function was left behind"


@pytest.mark.parametrize("mode", [TorchFunctionMode, TorchDispatchMode])
def test_a_mode_is_seen(mode, seal):
    with mode():
        found = seal.broken()
    assert found == "a mode was left behind"
    with torch.device("cpu"):  # as torch.set_default_device leaves it
        assert seal.broken() is None


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGALRM, "SIGALRM"), (signal.SIGRTMIN + 6, f"signal {signal.SIGRTMIN + 6}")],
)
def test_a_handler_is_seen(seal, number, name):
    before = signal.signal(number, lambda *_: None)
    found = seal.broken()
    signal.signal(number, before)
    assert found == f"a handler of {name} was left behind"


def test_a_thread_at_work_is_seen_and_an_idle_pool_is_not(seal):
    """Compilers keep such pools."""
    end = threading.Event()
    with ThreadPool(1) as threads:
        threads.apply(int)
        time.sleep(0.2)  # until its other threads wait too
        assert seal.broken() is None
        threads.apply_async(end.wait)
        time.sleep(0.05)
        found = seal.broken()
        end.set()
    assert found.startswith("a thread was left behind, in ")
    end.clear()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        time.sleep(0.05)  # until it waits for more
        assert seal.broken() is None
        pool.submit(end.wait)
        time.sleep(0.05)
        found = seal.broken()
        end.set()
    assert found.startswith("a thread was left behind, in ")
    timer = threading.Timer(60, len)
    timer.start()
    found = seal.broken()
    timer.cancel()
    timer.join()
    assert found.startswith("a thread was left behind, in ")


# --- honest code ----------------------------------------------------------------------------------

SETTINGS = {
    "default dtype": (torch.set_default_dtype, torch.float64, torch.float32),
    "tensor type": (torch.set_default_tensor_type, torch.DoubleTensor, torch.FloatTensor),
    "precision": (torch.set_float32_matmul_precision, "medium", "highest"),
    "deterministic": (torch.use_deterministic_algorithms, True, False),
    "gradients": (torch.set_grad_enabled, False, True),
    "anomalies": (torch.autograd.set_detect_anomaly, True, False),
    "device": (torch.set_default_device, "cpu", None),
    "denormals": (torch.set_flush_denormal, True, False),
    "warnings": (torch.set_warn_always, True, False),
    "generator": (torch.manual_seed, 1, 2),
}


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_torchs_is_not_accused(setting):
    """`torch.set_default_dtype` replaces `torch.Storage`."""
    change, value, before = SETTINGS[setting]
    seal = sealed(torch, torch.Tensor, torch.autograd, torch.cuda, torch.nn.functional)
    change(value)
    found = seal.broken()
    change(before)
    assert found is None


def test_torch_compile_is_not_accused():
    seal = sealed(torch, torch.Tensor, torch.autograd, torch.cuda, torch.nn.functional, time)
    torch.compile(lambda x: x.sin() * 2, backend="aot_eager")(torch.ones(3, requires_grad=True))
    assert seal.broken() is None


def test_a_look_keeps_nothing_of_its_callers_alive():
    """A frame that holds itself would hold the results of every timed call."""
    seal = Seal.of([])

    def call():
        result = torch.zeros(3)
        seal.broken()
        return weakref.ref(result)

    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "begin",
    [
        lambda: ThreadPool(1, time.sleep, (60,)),
        lambda: hold_on(ThreadPool(1), lambda pool: pool.apply_async(time.sleep, (60,))),
        lambda: hold_on(ThreadPool(1), lambda pool: pool.imap(int, map(time.sleep, [60]))),
        lambda: hold_on(ThreadPool(1), lambda pool: pool.map_async(time.sleep, [60])),
        lambda: hold_on(
            ThreadPool(1), lambda pool: pool.apply_async(int, callback=lambda _: time.sleep(60))
        ),
    ],
)
def test_a_pool_that_runs_no_python_is_at_work_all_the_same(begin):
    seal = sealed()
    pool = begin()
    time.sleep(0.2)
    found = seal.broken()
    pool.terminate = lambda: None
    assert "a thread was left behind" in found


def hold_on(pool, begin):
    begin(pool)
    return pool


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_pool_may_still_tell_a_result_that_its_caller_has(tasks):
    """The caller goes on before the pool's thread has come back to where it waits."""
    seal, switch = sealed(), sys.getswitchinterval()
    with ThreadPoolExecutor(tasks) as pool, ThreadPool(tasks) as threads:
        threads.apply(int)
        pool.submit(int).result()
        time.sleep(0.2)
        sys.setswitchinterval(1e-6)
        try:
            for _ in range(2000):
                for job in [pool.submit(int) for _ in range(tasks)]:
                    job.result()
                assert not seal._left_behind()
                threads.apply(int)
                assert not seal._left_behind()
        finally:
            sys.setswitchinterval(switch)


def test_threads_of_a_call_that_raised_may_end():
    """Where one thread of a pool raises, the caller returns while the others still work."""
    seal, end = sealed(), time.monotonic() + 0.2

    def work():
        while time.monotonic() < end:
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)
        time.sleep(0.05)
        assert "a thread was left behind" in seal.broken()
        seal.await_threads()
        assert seal.broken() is None


def test_where_little_time_is_left_what_is_near_is_compared(monkeypatch):
    far, own = types.ModuleType("far"), types.ModuleType("near")
    far.function = own.function = function
    seal = Seal.of([far, own], near=("near",))._replace(frames=dict)
    assert seal.broken(near=True) is seal.broken() is None
    monkeypatch.setattr(far, "function", len)
    assert seal.broken(near=True) is None
    assert seal.broken() == "far.function was replaced"
    monkeypatch.setattr(own, "function", len)
    assert seal.broken(near=True) == "near.function was replaced"


def test_code_and_modes_are_seen_near_too():
    def replaced():
        return 2

    def own():
        return 1

    near = types.ModuleType("near")
    near.own = own
    seal = Seal.of([near], near=("near",))._replace(frames=dict)
    with TorchFunctionMode():
        assert seal.broken(near=True) == "a mode was left behind"
    own.__code__ = replaced.__code__
    assert seal.broken(near=True) == "near.own was replaced"


def test_the_functions_that_take_a_sample_are_near():
    names = {each.name for each in Seal.of(process.relied_on(), process.ours()).sealed}
    for module in process.SAMPLING:
        assert any(name == module or name.startswith(f"{module}.") for name in names), module


def test_what_the_seal_rests_on_cannot_be_changed_in_place():
    """A file that a solution adds to those where threads wait would hide its own."""
    for module in (seals, instances, namespaces):
        kept = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        assert not [name for name, value in kept.items() if type(value) in (dict, list, set)]


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
    ("left", "installed", "within", "said"),
    [
        ("callback", True, False, None),
        ("callback", False, False, "a callback of the garbage collector was left behind"),
        ("callback", True, True, "a callback of the garbage collector was left behind"),
        ("_made(callback)", True, False, "a callback of the garbage collector was left behind"),
        ("_made", True, False, None),
        ("exec", True, False, "a callback of the garbage collector was left behind"),
        ("Equal()", True, False, "a callback of the garbage collector was left behind"),
    ],
)
def test_an_installed_library_may_watch_the_collector(
    tmp_path, monkeypatch, left, installed, within, said
):
    """As JAX does, which TransformerEngine and CUTLASS import; a solution may not."""
    file = tmp_path / "a_library.py"
    file.write_text(LIBRARY.format(left))
    monkeypatch.setattr(gc, "callbacks", [lambda phase, info: None])
    monkeypatch.setattr(sys, "path", [str(tmp_path if within else tmp_path / "mine"), *sys.path])
    monkeypatch.setattr("common.sandbox.seal._INSTALLED", (str(tmp_path),) * installed)
    seal = sealed()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    library = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, library)
    spec.loader.exec_module(library)
    assert seal.broken() == said
