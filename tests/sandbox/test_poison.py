"""Fresh memory is filled whoever allocates it, stands between bands, and behaves as torch's own."""

import ctypes
import gc
import math

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan_op

from common.arena import BAND
from common.sandbox import poison
from common.sandbox.poison import Poison

NAN = float("nan")


def allocated(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


library = torch.library.Library("test_poison", "FRAGMENT")
library.define("fresh(Tensor x) -> Tensor")
library.impl("fresh", allocated, "CPU")
library.define("anywhere(Tensor x) -> Tensor")
library.impl("anywhere", allocated, "CompositeExplicitAutograd")
library.define("outer(Tensor x) -> Tensor")
library.impl("outer", lambda x: torch.ops.test_poison.fresh(x), "CPU")
library.define("beside(Tensor factor, Tensor x) -> Tensor")
library.impl("beside", lambda factor, x: allocated(factor), "CPU")
library.impl("beside", lambda factor, x: allocated(x), "Meta")
custom = torch.library.custom_op(
    "test_poison::custom", allocated, mutates_args=(), schema="(Tensor x) -> Tensor"
)
custom.register_autograd(lambda ctx, grad: custom(grad))
OPERATORS = {
    "of a device": torch.ops.test_poison.fresh,
    "of any device": torch.ops.test_poison.anywhere,
    "within another": torch.ops.test_poison.outer,
    "by custom_op": custom,
}


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("guarded", ["cpu", "cuda"])
def test_memory_of_an_operator_is_filled(kind, guarded):
    """torch takes a mode off while it handles a function, and an operator allocates inside."""
    x = torch.ones(3, requires_grad=True)
    with Poison(NAN, 0x45, guarded):
        fresh = OPERATORS[kind](x)
        assert fresh.isnan().all()
        with torch.no_grad():
            assert OPERATORS[kind](x).isnan().all()
        if kind == "by custom_op":
            assert torch.autograd.grad(fresh, x, torch.ones(3))[0].isnan().all()


def test_an_operator_runs_where_its_tensors_lie():
    """A factor on the CPU may come first."""
    with Poison(NAN, 0x45):
        fresh = torch.ops.test_poison.beside(torch.ones(1), torch.ones(3, device="meta"))
    assert fresh.device.type == "meta"


def test_a_higher_order_operator_runs():
    with Poison(NAN, 0x45):
        (sums,) = associative_scan_op(lambda x, y: [x + y], [torch.ones(3)], ())
    assert sums.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (None, None),
        (range(-12, 0), "wrote 12 bytes before"),
        (range(32, 36), "wrote 4 bytes after"),
    ],
)
def test_fresh_memory_stands_between_bands(place, text):
    """On a GPU it does; the interpreter checks addresses instead."""
    with Poison(12_345.0, 0xFF, guarded="cpu") as poison:
        fresh = torch.empty(4, 2)
    assert fresh.tolist() == [[12_345.0] * 2] * 4
    around = (ctypes.c_uint8 * 64).from_address(fresh.data_ptr() - 16)
    assert {*around[:16], *around[48:]} == {0xFF}
    for index in place or ():
        around[16 + index] = 1
    assert poison.overrun() == (text and f"{text} memory of its own")


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64], ids=str)
def test_fresh_memory_is_the_start_of_its_storage(dtype):
    """So that `as_strided(size, stride, 0)` is that memory, not the band before it."""
    with Poison(NAN, 0x45, guarded="cpu") as poison:
        fresh = torch.empty(2, 3, dtype=dtype)
        again = fresh.as_strided((6,), (1,), 0).zero_()
    assert again.data_ptr() == fresh.data_ptr()
    assert fresh.storage_offset() == 0 and fresh.untyped_storage().nbytes() == 6 * dtype.itemsize
    assert poison.overrun() is None


FRESH = {
    "empty": lambda x: torch.empty(3, 5, dtype=torch.float64),
    "empty, transposed": lambda x: torch.empty(15).view(5, 3).t(),
    "empty_like": lambda x: torch.empty_like(x.t()),
    "empty_strided": lambda x: torch.empty_strided((3, 5), (10, 2)),
    "empty_permuted": lambda x: torch.empty_permuted((3, 5), (1, 0)),
    "new_empty": lambda x: x.new_empty(3, 5, dtype=torch.int16),
    "new_empty_strided": lambda x: x.new_empty_strided((3, 5), (1, 3)),
    "zeros_like": lambda x: torch.zeros_like(x),
}


@pytest.mark.parametrize("make", FRESH.values(), ids=FRESH)
def test_memory_between_bands_has_the_shape_that_it_has_without(make):
    x = torch.ones(3, 5)
    plain = make(x)
    with Poison(NAN, 0x45, guarded="cpu"):
        fresh = make(x)
    assert (fresh.shape, fresh.stride(), fresh.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert fresh.untyped_storage().nbytes() == plain.untyped_storage().nbytes()


@pytest.mark.parametrize("guarded", ["cpu", "cuda"])
def test_resizing_keeps_what_was_written(guarded):
    with Poison(NAN, 0x45, guarded) as poison:
        tensor = torch.empty(2, 3).fill_(1.0)
        tensor.resize_(2)
        assert tensor.tolist() == [1.0, 1.0]
        tensor.resize_(3, 3)
    assert tensor.flatten()[:6].tolist() == [1.0] * 6
    assert all(map(math.isnan, tensor.flatten()[6:].tolist()))
    assert poison.overrun() is None


def test_memory_that_would_take_too_much_has_no_bands(monkeypatch):
    """What is freed within a call stays until its end only between bands."""
    monkeypatch.setattr(poison, "MOST_GUARDED", 10 << 10)
    with Poison(NAN, 0x45, "cpu") as several:
        large = torch.empty_strided((3, 1000), (2000, 1))
        kept = [torch.empty(64) for _ in range(20)]
        raw = (each for each in gc.get_objects() if type(each) is torch.Tensor)
        assert sum(each.nbytes == 4 * 64 + 2 * BAND for each in raw) <= 6
    assert large.stride() == (2000, 1) and large.isnan().all()
    assert all(each.isnan().all() for each in kept)
    ctypes.memset(kept[0].data_ptr() - 1, 1, 1)
    assert several.overrun() == "wrote 1 bytes before memory of its own"
