"""Plans of kernels that take descriptors, against Triton's own launches of the same arguments.

The driver is Triton's but for its compiled half, which notes its calls and launches nothing.
"""

from types import SimpleNamespace

import descriptors
import launch
import pytest
import torch
import triton
import triton.language as tl
from descriptors import TilePlan, Tiles
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia

SIZE = 16
PLACES = {3: Tiles((32, 64), (64, 1), (SIZE, SIZE)), 0: Tiles((64, 32), (32, 1), (SIZE, SIZE))}


@triton.jit
def _kernel(a, nothing, out, b, n, SIZE: tl.constexpr, LEFT_OUT: tl.constexpr = 3):
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out + n * LEFT_OUT + place, a.load([n, 0]) + b.load([0, n]))


@pytest.fixture
def noted(monkeypatch):
    """Return the launches and the tensor maps that the driver is asked for."""
    noted = SimpleNamespace(launches=[], maps=[])

    def fill(*what):
        noted.maps.append(what)
        return what

    def note(*given):  # Triton 3.6 gives a kernel's arguments behind 13 others, 3.7 as a list
        noted.launches.append(given[-1] if isinstance(given[-1], (list, tuple)) else given[13:])

    utils = SimpleNamespace(
        load_binary=lambda *_: (1, 2, 64, 0, 1024), get_device_properties=lambda _: H100,
        fill_tma_descriptor=fill, fill_tma_descriptor_tiled=fill, launch=note,
        build_signature_metadata=lambda _: b"",
    )  # fmt: skip
    driver = SimpleNamespace(
        utils=utils, launcher_cls=nvidia.CudaLauncher, get_current_device=lambda: 0,
        get_current_stream=lambda _: 0, get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )  # fmt: skip
    built = SimpleNamespace(launch=note)
    for name, value in (
        ("PyKernelArg", lambda **_: None), ("compile_module_from_src", lambda **_: built),
        ("library_dirs", list),
    ):  # fmt: skip
        monkeypatch.setattr(nvidia, name, value, raising=False)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(launch, "can_launch_directly", lambda _: True)
    monkeypatch.setattr(descriptors, "make_context_current", lambda _: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    _kernel.device_caches.clear()  # what was compiled has another test's launcher
    return noted


H100 = {"multiprocessor_count": 132, "max_shared_mem": 232448}


def planned():
    return TilePlan(_kernel, (5,), (7,), PLACES, SIZE=SIZE, num_warps=4)


def tensors():
    a, out, b = (torch.zeros(2048, dtype=torch.float16) for _ in range(3))
    return a, None, out, b


def values(arguments):
    """Return a launch's arguments, addresses in the place of tensors, less the two constants."""
    return [
        argument.data_ptr() if hasattr(argument, "data_ptr") else argument for argument in arguments
    ][:-2]


def test_a_planned_launch_has_the_arguments_of_an_ordinary_one(noted):
    plan = planned()
    for given in (tensors(), tensors(), tensors()):
        plan.launch(given)
        plan(*given)
        ordinary, by_plan = map(values, noted.launches[-2:])
        assert by_plan == ordinary and len(ordinary) == 2 * 5 + 3
        assert ordinary[0][0] == given[0].data_ptr() and ordinary[7][0] == given[3].data_ptr()


def test_a_tensor_map_is_made_once_for_an_address(noted):
    plan, first, second = planned(), tensors(), tensors()
    plan(*first)
    made = len(noted.maps)
    for given in (first, second, first, second):
        plan(*given)
    addresses = [each[0] for each in noted.maps[made:]]
    assert sorted(addresses) == sorted(
        given[at].data_ptr() for given in (first, second) for at in PLACES
    )
    assert len(noted.launches) == 5


def test_a_kernel_with_memory_of_its_own_is_launched_by_triton(noted, monkeypatch):
    monkeypatch.setattr(descriptors, "allocates", lambda _: True)
    plan, given = planned(), tensors()
    for _ in range(3):
        plan(*given)
    assert len(noted.launches) == 3
    assert all(isinstance(arguments[6], torch.Tensor) for arguments in noted.launches)
