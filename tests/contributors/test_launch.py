"""The house's plans of launches, against Triton's ordinary launch of the same arguments."""

from __future__ import annotations

import collections
import itertools
import random
import runpy
from types import SimpleNamespace

import pytest
import torch

from common.paths import ROOT

FILE = str(ROOT / "contributors" / "house" / "launch.py")
DTYPES = (torch.float32, torch.bfloat16, torch.int32)


class Kernel:
    """A kernel that notes how Triton would specialise it, and how each launch was made."""

    debug, pre_run_hooks = False, ()
    arg_names = ("x", "y", "z", "n", "stride")

    def __init__(self, scratch=0, version=(3, 7)):
        self.compiled, self.launches, self.scratch = [], [], scratch
        self.launcher = Launcher if version == (3, 7) else OldLauncher

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            how = specialised(arguments[:3])
            self.compiled.append(how)
            self.launches.append(("ordinary", grid, arguments, options))
            return SimpleNamespace(
                run=self.launcher(self, how), function="function", packed_metadata="packed"
            )

        return launch


class Launcher:
    """The launcher of a kernel that was compiled for these arguments, as Triton 3.7 has it."""

    launch_cooperative_grid, launch_pdl, profile_scratch_size = False, True, 0
    arg_annotations, kernel_signature = "annotations", b"signature"

    def __init__(self, kernel, how):
        self.kernel, self.how = kernel, how
        self.global_scratch_size = kernel.scratch

    def launch(self, x, y, z, stream, function, cooperative, pdl, metadata, *given):
        *nothing, annotations, signature, arguments = given
        assert (cooperative, pdl, nothing) == (False, True, [None] * 5)
        assert (annotations, signature) == ("annotations", b"signature")
        self._note("direct", (x, y, z), stream, function, metadata, arguments)

    def __call__(self, x, y, z, stream, function, metadata, told, enter, leave, *arguments):
        assert enter is leave is told is None
        self._note("called", (x, y, z), stream, function, metadata, arguments)

    def _note(self, way, grid, stream, function, metadata, arguments):
        for how, address in zip(self.how, arguments[:3], strict=True):
            assert (how is None) == (address is None)
            assert how is None or how[1] == (address % 16 == 0), "compiled for other arguments"
        assert (stream, function, metadata) == ("stream", "function", "packed")
        self.kernel.launches.append((way, grid, arguments, {}))


class OldLauncher(Launcher):
    """The same, as Triton 3.6 has it."""

    def launch(self, x, y, z, stream, function, cooperative, pdl, *given):
        first, second, metadata, told, enter, leave, *arguments = given
        assert (cooperative, pdl) == (False, True)
        assert first is second is told is enter is leave is None
        self._note("direct", (x, y, z), stream, function, metadata, arguments)


def specialised(tensors):
    """Return what Triton compiles a kernel anew for: dtypes, and addresses that 16 divides."""
    return tuple(
        None if tensor is None else (tensor.dtype, tensor.data_ptr() % 16 == 0)
        for tensor in tensors
    )


@pytest.fixture
def plan(monkeypatch):
    """Return a function that makes a plan of a kernel on a GPU that is not there."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: "stream", raising=False)
    module = runpy.run_path(FILE)
    names = module["Plan"].__init__.__globals__
    monkeypatch.setitem(names, "can_launch_directly", lambda _: True)
    monkeypatch.setitem(names, "VERSION", (3, 7))  # as the kernel's launcher is, unless told
    return lambda kernel: module["Plan"](kernel, (7, 2), (3, 16), num_warps=2)


def test_random_arguments_are_launched_as_they_were_compiled_for(plan):
    """Some addresses are no multiples of 16; a launch by address gets those of its tensors."""
    dice = random.Random(0)
    for dtypes in itertools.product(DTYPES, (None, *DTYPES), DTYPES):
        kernel = Kernel()
        planned = plan(kernel)
        for _ in range(20):
            planned(*(None if dtype is None else drawn(dice, dtype) for dtype in dtypes))
        assert len(kernel.launches) == 20
        assert all(launch[2][3:] == (3, 16) for launch in kernel.launches)
        assert {launch[1] for launch in kernel.launches} == {(7, 2, 1)}
        ways = collections.Counter(how for how, *_ in kernel.launches)
        assert ways["direct"] and ways["ordinary"]
        ordinary = [launch for launch in kernel.launches if launch[0] == "ordinary"]
        assert all(each[3] == {"num_warps": 2} for each in ordinary)


def drawn(dice, dtype):
    return torch.zeros(64, dtype=dtype)[dice.choice((0, 0, 0, 3)) :]


@pytest.mark.parametrize("version", [(3, 6), (3, 7)])
def test_a_direct_launch_gets_the_addresses(plan, monkeypatch, version):
    kernel, x, y = Kernel(version=version), torch.zeros(4), torch.zeros(4)
    planned = plan(kernel)
    monkeypatch.setitem(type(planned).__init__.__globals__, "VERSION", version)
    planned(x, None, x)
    planned(y, None, x)
    way, grid, arguments, _ = kernel.launches[-1]
    assert way == "direct" and grid == (7, 2, 1)
    assert tuple(arguments) == (y.data_ptr(), None, x.data_ptr(), 3, 16)


@pytest.mark.parametrize("version", [(3, 6), (3, 7)])
def test_a_launcher_that_allocates_scratch_memory_is_called_whole(plan, monkeypatch, version):
    kernel, x = Kernel(64, version), torch.zeros(4)
    planned = plan(kernel)
    monkeypatch.setitem(type(planned).__init__.__globals__, "VERSION", version)
    planned(x, None, x)
    planned(x, None, x)
    assert [how for how, *_ in kernel.launches] == ["ordinary", "called"]


def test_a_tensor_of_the_cpu_is_left_to_triton(plan, monkeypatch):
    """A launch by address would read the host's memory on the GPU; Triton complains."""
    kernel, x = Kernel(), torch.zeros(4)
    planned = plan(kernel)
    planned(x, None, x)
    monkeypatch.setattr(torch.Tensor, "is_cuda", False)
    planned(x, None, x)
    assert [how for how, *_ in kernel.launches] == ["ordinary", "ordinary"]


def test_another_device_is_another_compilation(plan, monkeypatch):
    kernel, x = Kernel(), torch.zeros(4)
    planned = plan(kernel)
    for device in (0, 1, 0, 1):
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda device=device: device)
        planned(x, None, x)
    assert [how for how, *_ in kernel.launches] == ["ordinary"] * 2 + ["direct"] * 2


@pytest.mark.parametrize("who", ["debug", "hook", "the kernel's hook", "the kernel's debug"])
def test_who_watches_launches_sees_them(plan, monkeypatch, who):
    import triton

    kernel, x = Kernel(), torch.zeros(4)
    planned = plan(kernel)
    planned(x, None, x)
    planned(x, None, x)
    assert kernel.launches[-1][0] == "direct"
    if who == "debug":
        monkeypatch.setattr(triton.knobs.runtime, "debug", True)
    elif who == "hook":
        monkeypatch.setattr(triton.knobs.runtime.launch_enter_hook, "calls", [print])
    elif who == "the kernel's hook":
        kernel.pre_run_hooks = [print]
    else:
        kernel.debug = True
    planned(x, None, x)
    assert kernel.launches[-1][0] == "ordinary"


def test_an_interpreted_kernel_and_another_version_take_the_ordinary_way(monkeypatch):
    import triton

    directly = runpy.run_path(FILE)["can_launch_directly"]
    assert not directly(Kernel()), "no kernel of Triton's compiler"
    kernel = object.__new__(triton.runtime.jit.JITFunction)
    active = type("Driver", (), {"__module__": "triton.backends.nvidia.driver"})()
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=active))
    assert directly(kernel)
    for version, known in (((9, 0), False), ((3, 7), True)):
        monkeypatch.setitem(directly.__globals__, "VERSION", version)
        assert directly(kernel) == known
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=object()))
    assert not directly(kernel)
