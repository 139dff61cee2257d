"""What a solution replaced is seen, and what honest code does is not taken for it."""

from __future__ import annotations

import gc
import sys
import time
import types
import weakref

import pytest
import torch
import torch._dynamo  # as process.py does: it replaces torch.manual_seed when it is imported
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from common.sandbox import instances, namespaces, process
from common.sandbox import seal as seals
from common.sandbox.seal import Seal
from tests.support.sealing import sealed


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


def test_a_further_entry_of_a_table_is_seen(entries, seal):
    """The seal's own table of pools is one: a file more, and its threads are idle ones."""
    (behind,) = gc.get_referents(module.table)
    behind["second"] = len
    assert seal.broken() == "module.table.__len__ was replaced"


def test_a_name_that_hides_a_builtin_is_seen(seal, monkeypatch):
    """A module's functions look there first."""
    monkeypatch.setattr(module, "min", len, raising=False)
    assert seal.broken() == "module.min was replaced"


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


@pytest.mark.slow
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
        if module == "torch._utils" and torch.backends.cuda.is_built():
            continue  # it stands in for streams and events where torch has none, which are C's
        assert any(name == module or name.startswith(f"{module}.") for name in names), module


def test_what_the_seal_rests_on_cannot_be_changed_in_place():
    """A file that a solution adds to those where threads wait would hide its own."""
    for module in (seals, instances, namespaces):
        kept = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        assert not [name for name, value in kept.items() if type(value) in (dict, list, set)]
