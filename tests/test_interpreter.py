"""Each mend of Triton's interpreter: right with it, and still needed. Every lane's address is held
against the launch's arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

KERNELS = Path(__file__).parent / "kernels"
ROOT = KERNELS.parents[1]
N = 16


def run(script: str, *arguments: str):
    done = subprocess.run(
        [sys.executable, KERNELS / script, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def mended():
    return run("interpreted.py", "mended")


@pytest.fixture(scope="module")
def bare():
    return run("interpreted.py", "bare")


def expected() -> dict[str, torch.Tensor]:
    """What a GPU gives, from torch on the CPU, whose bfloat16 rounds once an operation."""
    x, y = torch.linspace(-3, 2, N).bfloat16(), torch.linspace(0.7, 5, N).bfloat16()
    values = torch.tensor([1.00390625, 1.01171875, -3.14159, 65504.0, 1e-3, 7.0, -0.0, torch.nan])
    row = torch.linspace(-3, 2.5, N).bfloat16()
    torch.manual_seed(0)
    a, b = torch.randn(N, N), torch.randn(N, N)
    return {
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
    }


def _truncated(values: torch.Tensor) -> torch.Tensor:
    """To the 10 bits of mantissa that a tensor core looks at; an H200 was seen to do so."""
    return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)


EXPECTED = expected()
RIGHT_ALREADY = {
    *("bfloat16 less", "bfloat16 maximum", "bfloat16 max"),
    *("bfloat16 to float32", "bfloat16 to float16", "ieee dot"),
}
"""Right without a mend; here so that no mend breaks them."""


def close(result, name: str) -> bool:
    if isinstance(result, str):
        return False
    tolerance = 1e-5 if "dot" in name else 0.0
    wanted = EXPECTED[name].double().flatten()
    actual = torch.tensor(result, dtype=torch.float64)
    return torch.allclose(actual, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", EXPECTED)
def test_mended_is_right(name, mended):
    assert close(mended[name], name), (mended[name], EXPECTED[name])


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - RIGHT_ALREADY))
def test_mend_is_still_needed(name, bare):
    assert not close(bare[name], name), "Triton does this right now: the mend can go"


def test_tf32_is_worse_than_float32(mended):
    """So that a tf32 product in a float32 solution is a wrong value on a CPU too."""
    truth = EXPECTED["ieee dot"].flatten()
    error = (torch.tensor(mended["tf32 dot"], dtype=torch.float64) - truth).abs().max()
    assert error > 1e-4


@pytest.fixture(scope="module")
def accesses():
    return run("accesses.py")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("load past the end", "reads bytes 32 to 36 of x, which has 32,"),
        ("load before the start", "reads bytes -8 to -4 of x, which has 32,"),
        ("store past the end", "writes bytes 16 to 20 of out, which has 16,"),
        ("block pointer", "reads bytes 28 to 32 of x, which has 28,"),
        ("atomic", "updates bytes 32 to 36 of out, which has 32,"),
        ("view of an input", "reads bytes 32 to 36 of x, which has 32,"),
        ("descriptor too long", "reads bytes 32 to 36 of x, which has 32,"),
        ("made descriptor too long", "reads bytes 32 to 36 of x, which has 32,"),
        ("tuple past the end", "reads bytes 32 to 36 of pair[0], which has 32,"),
        ("compare and swap past the end", "updates bytes 32 to 36 of out, which has 32,"),
        ("block pointer's store", "writes bytes 28 to 32 of out, which has 28,"),
    ],
)
def test_astray_is_named(name, message, accesses):
    assert accesses[name].startswith(message), accesses[name]
    assert "of accesses.py: " in accesses[name], "the source line is told"


@pytest.mark.parametrize(
    "name",
    [
        *("masked", "block pointer checked", "own storage", "another argument", "descriptor"),
        *("made descriptor", "tuple", "compare and swap", "block pointer's store checked"),
    ],
)
def test_honest_access_is_not_accused(name, accesses):
    assert accesses[name] == ""


def test_swallowing_the_exception_does_not_hide_it(accesses):
    assert accesses["swallowed"].startswith("reads")
