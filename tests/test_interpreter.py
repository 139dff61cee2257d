"""Each patch of Triton's interpreter is right and still needed; each address is checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from common.sandbox.interpreter import bounds

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
def patched():
    return run("interpreted.py", "patched")


@pytest.fixture(scope="module")
def bare():
    return run("interpreted.py", "bare")


INTEGERS = ("int8", "int16", "int32", "int64")


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
    if isinstance(result, str):
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


def test_tf32_is_worse_than_float32(patched):
    """So that a tf32 product in a float32 solution is a wrong value on a CPU too."""
    truth = EXPECTED["ieee dot"].flatten()
    error = (torch.tensor(patched["tf32 dot"], dtype=torch.float64) - truth).abs().max()
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
def test_an_access_outside_is_named(name, message, accesses):
    assert accesses[name].startswith(message), accesses[name]
    assert "of accesses.py: " in accesses[name], "the report lacks the source line"


@pytest.mark.parametrize(
    "name",
    [
        *("masked", "block pointer checked", "own storage", "another argument", "descriptor"),
        *("made descriptor", "tuple", "compare and swap", "block pointer's store checked"),
    ],
)
def test_an_access_inside_is_not_reported(name, accesses):
    assert accesses[name] == ""


@pytest.mark.parametrize(
    "way", ["table", "address", "integer", "reinterpreted", "choice", "made block"]
)
def test_an_address_may_lead_to_any_live_tensor(way, accesses):
    """As entries of a table of pointers do, or a pointer that was an integer for a while."""
    assert accesses[f"through {way}"] == ""


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("table past the end", "reads bytes 32 to 36 of a live tensor, which has 32,"),
        ("table of what is gone", "reads bytes "),
        ("integer to another", "reads bytes "),
        ("input's neighbour", "reads bytes 32 to 36 of a live tensor, which has 32,"),
    ],
)
def test_an_address_leads_nowhere_else(way, message, accesses):
    """One that the kernel computed from an argument leads to that argument alone."""
    assert accesses[f"through {way}"].startswith(message), accesses[f"through {way}"]


def test_swallowing_the_exception_does_not_hide_it(accesses):
    assert accesses["swallowed"].startswith("reads")


# --- the kernel's line ----------------------------------------------------------------------------

FOLDER = Path(bounds.__file__).parent


def line_seen_below(path) -> str:
    """Return the line that is reported where a frame of the file stands between it and the kernel.

    The file need not call anything itself: the frame of a function compiled under its name does.
    """
    namespace = {}
    exec(compile("def below(call):\n    return call()\n", str(path), "exec"), namespace)
    return namespace["below"](bounds._kernel_line)  # the kernel's line


@pytest.mark.parametrize(
    "path",
    [
        *sorted(FOLDER.glob("*.py")),
        Path(triton.__file__),
        Path(triton.__file__).parent / "a" / "b.py",
    ],
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_no_frame_of_ours_or_tritons_passes_for_a_kernel(path):
    reported = line_seen_below(path)
    assert "of test_interpreter.py: " in reported and "# the kernel's line" in reported


@pytest.mark.parametrize("folder", [FOLDER.parent, Path(f"{FOLDER}_kernels"), Path("/solutions")])
def test_any_other_file_may_hold_a_kernel(folder):
    assert "line 2 of rope.py: " in line_seen_below(folder / "rope.py")


def test_the_interpreter_folder_holds_more_than_the_bounds():
    """So that the tests above have files to check."""
    assert {"bounds.py", "patches.py"} <= {path.name for path in FOLDER.glob("*.py")}
