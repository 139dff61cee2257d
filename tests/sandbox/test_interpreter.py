"""Each patch of Triton's interpreter is right and still needed; each address is checked."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support.interpreting import results

N = 16


@pytest.fixture(scope="module")
def patched():
    return results("interpreted")


@pytest.fixture(scope="module")
def bare():
    return results("interpreted", "bare")


INTEGERS = ("int8", "int32", "int64")


def expected() -> dict[str, torch.Tensor]:
    """Return a GPU's results, by torch on the CPU, whose bfloat16 rounds once an operation."""
    x, y = torch.linspace(-3, 2, N).bfloat16(), torch.linspace(0.7, 5, N).bfloat16()
    values = torch.tensor([1.00390625, 1.01171875, -3.14159, 65504.0, 1e-3, 7.0, -0.0, torch.nan])
    row = torch.linspace(-3, 2.5, N).bfloat16()
    torch.manual_seed(0)
    a, b = torch.randn(N, N), torch.randn(N, N)
    whole = torch.tensor([3, -7, 100, 60_000, 70_000, 2**31 - 1, -(2**31), 46_341] * 2)
    integers = {name: whole.to(getattr(torch, name)) for name in INTEGERS}
    return {
        **{f"{name} add": values + values for name, values in integers.items()},
        **{f"{name} multiply": values * values for name, values in integers.items()},
        "int32 count": 2 * (integers["int32"] > 0),
        "bfloat16 add": x + y,
        "bfloat16 multiply": x * y,
        "bfloat16 divide": x / y,
        "bfloat16 maximum": torch.maximum(x, y),
        "bfloat16 less": torch.where(x < y, x, y),
        "bfloat16 negate": -x,
        "bfloat16 fma": (x.float() * y.float() + x.float()).bfloat16(),
        "bfloat16 clamp": torch.minimum(torch.maximum(x, -y), y),
        "bfloat16 constant": x + torch.tensor(1.5, dtype=torch.bfloat16),
        "float32 to bfloat16": values.bfloat16(),
        "float16 to bfloat16": values.half().bfloat16(),
        "bfloat16 to float16": values.bfloat16().half(),
        "bfloat16 to float32": values.bfloat16().float(),
        "bfloat16 sum": row.float().sum().bfloat16(),
        "bfloat16 max": row.max(),
        "bfloat16 reduce": row.float().sum().bfloat16(),
        "bfloat16 dot": a.bfloat16().float() @ b.bfloat16().float(),
        "tf32 dot": _truncated(a).double() @ _truncated(b).double(),
        "ieee dot": a.double() @ b.double(),
        "autotune": torch.tensor([4.0] * 4 + [0.0] * 4),
        "address of 32 bits": torch.tensor([1 << 20]),
    }


def _truncated(values: torch.Tensor) -> torch.Tensor:
    """Cut to the 10 bits of mantissa that a tensor core reads, as observed on an H200."""
    return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)


EXPECTED = expected()
RIGHT_ALREADY = {
    *("bfloat16 less", "bfloat16 maximum", "bfloat16 max"),
    *("bfloat16 to float32", "bfloat16 to float16", "ieee dot", "int32 count"),
    *(f"{name} {kind}" for name in INTEGERS for kind in ("add", "multiply")),
}
"""Right without a patch; here so that no patch breaks them."""


def close(result, name: str) -> bool:
    if isinstance(result[-1], str):
        return False
    tolerance = 1e-5 if "dot" in name else 0.0
    wanted = EXPECTED[name].double().flatten()
    actual = torch.tensor(result, dtype=torch.float64)
    return torch.allclose(actual, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", EXPECTED)
def test_patched_is_right(name, patched):
    assert close(patched[name], name), (patched[name], EXPECTED[name])


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - RIGHT_ALREADY))
def test_patch_is_still_needed(name, bare):
    assert not close(bare[name], name), "Triton does this right now: the patch can go"


@pytest.fixture(scope="module")
def accesses():
    return results("accesses")


FIRST = "program (0,), "
OUTSIDE = {
    "load past the end": f"{FIRST}first=0, last=8: reads x + 8 of 8, ",
    "store past the end": f"{FIRST}first=0, last=8: writes out + 4 of 4, ",
    "block pointer": f"{FIRST}n=7: reads x + 7 of 7, ",
    "atomic": f"{FIRST}index=8: updates out + 8 of 8, ",
    "compare and swap past the end": f"{FIRST}index=8: updates out + 8 of 8, ",
    "amid an element": f"{FIRST}bytes=30: reads x + 30 bytes of 32 bytes, ",
    "view of an input": f"{FIRST}first=0, last=8: reads x + 8 of 8, ",
    "swallowed": f"{FIRST}first=0, last=8: reads x + 8 of 8, ",
    "descriptor too long": "program (0,): reads x + 8 of 8, ",
    "tuple past the end": "program (0,): reads pair[0] + 8 of 8, ",
    "seven sizes": f"{FIRST}a=8, b=8, c=8, d=8, e=8, f=8: reads x + 8 of 8, ",
    "second of a row": "program (1,), n=8: reads x + 8 of 8, ",
    "second of a column": "program (0, 1), n=8: reads x + 8 of 8, ",
    "last of all": "program (0, 0, 2), n=8: reads x + 8 of 8, ",
    # an address that was loaded leads to live tensors, one that was computed to its argument
    "through table past the end": "program (0,): reads a live tensor + 8 of 8, ",
    "through input's neighbour": "program (0,): reads a live tensor + 8 of 8, ",
}
"""The program by its place in the grid, the sizes, and the element by its tensor."""
NOWHERE = {
    "through table of what is gone": "program (0,): reads ",
    "through integer to another": FIRST,
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_access_outside_is_named(name, accesses):
    assert accesses[name].startswith(OUTSIDE[name]), accesses[name]
    report = accesses[name].removeprefix(OUTSIDE[name])
    assert re.match(r"line \d+ of accesses.py: \w*\.?(load|store|atomic)", report), report


@pytest.mark.parametrize("name", NOWHERE)
def test_an_address_leads_to_no_memory_that_the_kernel_does_not_know(name, accesses):
    assert accesses[name].startswith(NOWHERE[name]), accesses[name]


def test_an_access_inside_is_not_reported(accesses):
    inside = {name for name, fault in accesses.items() if not fault}
    assert inside == {
        *("masked", "block pointer checked", "own storage", "descriptor"),
        *("tuple", "compare and swap"),
        "masked by a scalar too",
        # as entries of a table of pointers do, or a pointer that was an integer for a while
        *("through table", "through address", "through integer", "through reinterpreted"),
        *("through choice", "through made block"),
    }


@pytest.mark.parametrize("way", ["pointer", "function", "block pointer", "integer"])
def test_the_pointer_of_the_line_is_named_though_another_tensor_is_nearer(way, accesses):
    assert re.search(r": writes out [+-] \d+ of 8, line", accesses[f"store by {way}"])


@pytest.mark.parametrize(
    ("way", "product"),
    [("row", "row * stride"), ("tile", "rows * stride"), ("bytes", "row * stride")],
)
def test_an_offset_that_left_32_bits_is_named_with_its_product_and_arguments(
    way, product, accesses
):
    told = accesses[f"store by {way}"]
    assert told.startswith("program (0,), stride=45000: writes out - 2045147296 of "), told
    said = (
        r", since its offset wrapped: 49996 \* 45000 does not fit int32, line \d+ of accesses.py: "
    )
    assert re.search(f"{said}{re.escape(product)}$", told), told


@pytest.mark.parametrize("way", ["hash", "too far", "counted"])
def test_a_product_that_decides_nothing_or_may_not_be_repeated_is_not_named(way, accesses):
    """A program that has updated memory does not run again: a lock would never open."""
    assert "writes out - " in accesses[f"store by {way}"]
    assert "wrapped" not in accesses[f"store by {way}"]


# --- programs that conflict -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def conflicts():
    return results("conflicts")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two write", "programs (0,) and (1,) both write out + 0, line "),
        ("two lines write", "program (0,) writes out + 3, line "),
        ("reads before a write", "program (0,) reads x + 4, line "),
        ("reads after a write", "program (0,) writes out + 0, line "),
        ("both read", "program (0,) reads x + 0, line "),
        ("atomic sum", "programs (0,) and (1,) both update out + 0, line "),
        ("beside a ticket", "programs (0,) and (1,) both write out + 1, line "),
    ],
)
def test_two_programs_that_conflict_are_named(name, message, conflicts):
    assert conflicts[name].startswith(message), conflicts[name]
    assert conflicts[name].count("of conflicts.py: tl.") == 1 + ("both" not in message)


def test_programs_that_do_not_disturb_each_other_are_not(conflicts):
    apart = {name for name, found in conflicts.items() if not found}
    assert apart == {"apart", "the same value", "two launches", "reads alone", "each its own"}
