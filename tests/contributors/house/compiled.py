"""The house's kernels as Triton compiles them for an H100: functions, accesses, barriers."""

import re
from types import SimpleNamespace

import launch
import pytest
import rope
import rotary
import torch
import triton
from triton.backends.compiler import GPUTarget

DTYPE, FREQS = torch.bfloat16, (8192, 1, 1, 128)
HOW = ("sbhd", False, 1, 0)


@pytest.fixture(autouse=True)
def target(monkeypatch):
    """Let Triton find an H100, which runs nothing."""
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)


def assembly(plan, *tensors):
    """Return the PTX of a plan's kernel, for tensors of these dtypes."""
    assert isinstance(plan, launch.Plan)
    compiled = plan.kernel.warmup(*tensors, *plan._rest, grid=plan._grid, **plan._options)
    return compiled.asm["ptx"]


def of_rope(in_place, heads=32):
    rope._launch.plan.cache_clear()
    strides = (2 * heads * 128, heads * 128, 128, 1)
    of_t = (8192, 2, heads, 128), strides, DTYPE
    plan = rope._launch.plan(*of_t, FREQS, 128, torch.float32, None, HOW, False, in_place)
    return assembly(plan, DTYPE, torch.float32, DTYPE, None, None)


def of_both():
    strides = (2 * 48 * 128, 48 * 128, 128, 1)
    both = (8192, 2, 32, 128), strides, DTYPE, (8192, 2, 8, 128), strides, DTYPE
    plan = rotary._plan_qk(*both, FREQS, 128, torch.float32, None, None, HOW, False)
    return assembly(plan, DTYPE, DTYPE, torch.float32, DTYPE, DTYPE, None, None)


def accesses(ptx):
    """Return the bytes of one thread's loads and stores of t, as `ld: [16, 16]`."""
    found = {"ld": [], "st": []}
    for kind, many in re.findall(r"(ld|st)\.global\.(?:v([24])\.)?b32", ptx):
        found[kind].append(4 * int(many or 1))
    return found


def test_cosine_and_sine_are_exact_for_large_angles():
    """libdevice's reduce any angle by a table of 2 / pi; the approximate ones reduce none."""
    ptx = of_rope(in_place=False)
    assert not re.search(r"(sin|cos)\.approx", ptx)
    assert "__cudart_i2opi_f" in ptx


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("heads", [32, 1])
def test_a_tensor_is_read_and_written_in_sixteen_bytes(in_place, heads):
    found = accesses(of_rope(in_place, heads))
    assert 16 in found["ld"] and set(found["st"]) == {16}


def test_queries_and_keys_are_written_in_sixteen_bytes():
    assert set(accesses(of_both())["st"]) == {16}


@pytest.mark.parametrize("heads", [32, 1])
def test_in_place_all_have_loaded_before_one_stores(heads):
    """With one head a program takes both columns, which a thread turns one after the other."""
    ordinary, in_place = (of_rope(each, heads) for each in (False, True))
    assert in_place.count("bar.sync") == ordinary.count("bar.sync") + 1
    last_load, barrier = in_place.rindex("ld.global"), in_place.rindex("bar.sync")
    assert last_load < barrier < in_place.index("st.global")
