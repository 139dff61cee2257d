"""Values, functions behind them and instances are sealed too, and what the seal itself rests on."""

from __future__ import annotations

import contextlib
import functools
import operator
import types

import pytest

from common.sandbox import graded, namespaces
from common.sandbox.instances import hold
from common.sandbox.seal import Seal, roots
from tests.support.sealing import sealed


def function():
    return 1


@pytest.fixture
def ours():
    """A module of which every value counts, and its seal."""
    ours = types.ModuleType("common.ours")
    ours.LIMIT, ours.RATES, ours.function = 3, {"first": 1}, function
    seal = Seal.of([ours], [ours])
    return ours, seal._replace(frames=dict)


def test_another_value_of_ours_is_seen(ours):
    module, seal = ours
    assert seal.broken() is None
    module.LIMIT = 4
    assert seal.broken() == "common.ours.LIMIT was replaced"


def test_another_entry_of_a_dictionary_of_ours_is_seen(ours):
    module, seal = ours
    module.RATES["first"] = 2
    assert seal.broken() == "common.ours.RATES.first was replaced"


def test_what_a_closure_of_ours_holds_is_compared():
    source = "def outer(number):\n    def inside():\n        return number\n    return inside\n"
    ours = types.ModuleType("common.ours")
    exec(source + "inside = outer(1)\n", vars(ours))
    seal = Seal.of([ours], [ours])._replace(frames=dict)
    assert seal.broken() is None
    ours.inside.__closure__[0].cell_contents = 2
    assert seal.broken() == "common.ours.inside was replaced"


class Behind:
    """Functions that are no values of their class."""

    @property
    def got(self):
        return 1

    @functools.cached_property
    def kept(self):
        return 1

    @classmethod
    def of_the_class(cls):
        return 1

    @staticmethod
    def of_nothing():
        return 1

    @functools.cache  # noqa: B019
    def cached(self):
        return 1

    @contextlib.contextmanager
    def entered(self):
        yield 1


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("got", vars(Behind)["got"].fget),
        ("kept", vars(Behind)["kept"].func),
        *((name, vars(Behind)[name].__wrapped__) for name in ("of_the_class", "of_nothing")),
        *((name, vars(Behind)[name].__wrapped__) for name in ("cached", "entered")),
    ],
)
def test_other_code_in_a_function_behind_a_value_is_seen(name, function, monkeypatch):
    seal = sealed(Behind)
    assert seal.broken() is None
    monkeypatch.setattr(function, "__code__", (lambda _: 2).__code__)
    assert seal.broken().endswith(f"Behind.{name} was replaced")


def test_another_function_behind_a_decorator_is_seen():
    """That of the checks around each call: contextlib's function holds ours in its closure."""
    seal = sealed(graded)
    (cell,) = graded.checks.__closure__
    held = cell.cell_contents
    cell.cell_contents = function
    try:
        assert seal.broken() == "common.sandbox.graded.checks was replaced"
    finally:
        cell.cell_contents = held
    assert seal.broken() is None


class State:
    def __init__(self):
        self.value, self.other = 1, 2

    def check(self):
        return True


class Lax(State):
    pass


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("value", 2, "state.value was replaced"),
        ("other", 3, None),
        ("another", 3, None),
        ("check", len, "state.check was replaced"),
        ("__class__", Lax, "state.__class__ was replaced"),
    ],
)
def test_an_instance_is_compared_as_a_module_is(name, value, said):
    seal = Seal.of([])._replace(frames=dict)
    state = State()
    held = hold(state, "state", "value")
    assert seal.broken(held) is None
    setattr(state, name, value)
    assert seal.broken(held) == said


class Holder:
    def __init__(self, seal, report):
        self.seal, self.report, self.state = seal, report, 1

    def hold(self):
        return self.seal.broken()


def whole(below) -> bool:
    """Return what the loop of `process.serve` finds."""
    return all(all(map(operator.is_, map(p, o), v)) for p, o, v in below)


BREAKS = {
    "another seal": lambda holder, patch: setattr(holder, "seal", Seal.of([])),
    "a hidden method": lambda holder, patch: setattr(holder, "hold", len),
    "a class": lambda holder, patch: setattr(holder, "__class__", type("H", (Holder,), {})),
    "a method of the seal": lambda holder, patch: patch.setattr(Seal, "broken", len),
    "a field of the seal": lambda holder, patch: patch.setattr(Seal, "sealed", ()),
    "a step of the seal": lambda holder, patch: patch.setattr(namespaces, "_all", len),
    "code of the seal": lambda holder, patch: patch.setattr(
        namespaces.Parts.broken, "__code__", (lambda self: None).__code__
    ),
    "code that reports": lambda holder, patch: patch.setattr(
        function, "__code__", (lambda: 2).__code__
    ),
    "defaults of what reports": lambda holder, patch: patch.setattr(function, "__defaults__", (1,)),
    "a dictionary": lambda holder, patch: setattr(holder, "__dict__", dict(vars(holder))),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_what_the_seal_rests_on_is_compared(kind, monkeypatch):
    seal = Seal.of([])
    holder = Holder(seal, function)
    below = roots(holder, [function])
    holder.state = 2
    assert whole(below), "state may change"
    BREAKS[kind](holder, monkeypatch)
    assert not whole(below)
