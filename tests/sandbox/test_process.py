"""A solution's own process: the contract, the hidden and sealed harness, the requests."""

import contextlib
import ctypes
import json
import os

import pytest

from common.errors import Kind
from common.grading.fork_server import ForkServer
from common.paths import ROOT
from common.sandbox.landlock import landlock_version
from common.sandbox.target import TARGETS
from common.timed_requests import RunCalls
from tests.support.workers import HALF, RIGHT, ask, workers

SANDBOX = ROOT / "common" / "sandbox"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def rope(t, freqs): ...", ""),
        ("def rope(t, freqs, **options): ...", ""),
        ("def rope(t, freqs, tensor_format='sbhd', *, interleaved=False): ...", ""),
        ("def rope(x, freqs): ...", "another signature: rope(x, freqs) instead of rope(t, freqs,"),
        ("def rope(t): ...", "another signature: rope(t) instead of rope(t, freqs, ...)"),
        ("def rope(t, freqs, *, block=4): ...", "rope has no option 'block'"),
        ("def rope(t, freqs, *, cp_size=2): ...", "the default of cp_size must be 1"),
        ("def rope(t, freqs, *, interleaved): ...", "the default of interleaved must be False"),
        ("def rope(t, freqs:\n", "line 1 of rope.py"),
        ("import no_such_package\n", "No module named 'no_such_package', line 1 of rope.py"),
        ("def ropes(t, freqs): ...\n", "lacks a function named rope"),
        ("raise RuntimeError('at import')\n", "RuntimeError: at import, line 1 of rope.py"),
        ("rope = type('', (), {'__call__': max})()", "no signature that Python can inspect"),
    ],
)
def test_a_file_that_breaks_the_contract_says_how(worker, source, reason):
    reply = worker(source).ask(RunCalls())
    assert reply.get("verdict") == ("COMPILE_ERROR" if reason else None)
    assert reason in reply.get("reason", "")


CALLABLES = {
    "a compiled module": "class M(torch.nn.Module):\n    def forward(self, x{0}):\n"
    "        return half(x)\nrotate_half = torch.compile(M(), backend='eager')",
    "a partial": "def f(x, block{0}):\n    return half(x)\n"
    "rotate_half = functools.partial(f, block=4)",
    "apply": "class F(torch.autograd.Function):\n    @staticmethod\n"
    "    def forward(ctx, x{0}):\n        return half(x)\nrotate_half = F.apply",
    "apply with a context": "class F(torch.autograd.Function):\n    @staticmethod\n"
    "    def forward(x{0}):\n        return half(x)\n"
    "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        pass\n"
    "rotate_half = F.apply",
    "a script module": "class M(torch.nn.Module):\n    def forward(self, x{0}):\n"
    "        a, b = x.chunk(2)\n        return torch.cat((-b, a))\n"
    "rotate_half = torch.jit.script(M())",
}
"""What may be bound to the name of an op, with a place for an option; see the honest corpus."""
SOURCE = """
import functools
import torch

def half(x):
    a, b = x.chunk(2)
    return torch.cat((-b, a))

"""


@pytest.mark.parametrize("kind", CALLABLES)
def test_any_callable_is_taken_whose_options_are_the_ops(worker, kind):
    reply, result = ask(worker(SOURCE + CALLABLES[kind].format(""), "rotate_half"))
    assert "verdict" not in reply and result == RIGHT, reply
    option = ", interleaved: bool = True" if "script" in kind else ", interleaved=True"
    reply, _ = ask(worker(SOURCE + CALLABLES[kind].format(option), "rotate_half"))
    assert reply["verdict"] == "COMPILE_ERROR"
    assert "the default of interleaved must be False" in reply["reason"]


def test_a_helper_stands_first_on_the_path(worker, tmp_path):
    source = "from {} import HALF\ndef rotate_half(x):\n    return x * HALF\n"
    started = worker(source.format("json"), "rotate_half")
    (tmp_path / "somebody" / "json.py").write_text("raise ImportError('shadowed')\n")
    assert "HALF" in ask(started)[0]["reason"], "what Python has loaded already stays itself"
    (tmp_path / "somebody" / "kernels.py").write_text("HALF = 0.5\n")
    other = worker(source.format("kernels"), "rotate_half")
    assert ask(other)[1] == [0.5, 1.0, 1.5, 2.0]
    assert not list((tmp_path / "somebody").glob("__pycache__")), "the folder stays as it was"


LOOKS_AROUND = """
import json, sys

loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "common")
from common.sandbox import process
import torch

def rotate_half(x):
    frame, found = sys._getframe(1), {{"loaded": loaded, "copy": True}}
    while frame:
        found["copy"] &= frame.f_globals is not vars(process)
        if seal := getattr(frame.f_locals.get("session"), "seal", None):
            found["sealed"] = [name for name, *_ in seal.parts]
        frame = frame.f_back
    with open({!r}, "w") as note:
        json.dump(found, note)
    return x * 2
"""
"""A solution that writes down what of the harness is around it."""


def test_the_harness_is_hidden_from_a_solution_and_each_of_its_modules_is_sealed(worker, tmp_path):
    note = tmp_path / "note.json"
    reply, _ = ask(worker(LOOKS_AROUND.format(str(note)), "rotate_half"))
    assert "verdict" not in reply, reply
    found = json.loads(note.read_text())
    assert found["loaded"] == [] and found["copy"], "what it imports is a copy"
    unused = {"standalone", "counted"}  # of a tool, and of a process that counts
    modules = {path.stem for path in SANDBOX.glob("[!_]*.py")} - unused
    others = {"common.arena", "common.sandbox.interpreter.patches", "Session", "InterpreterBuilder"}
    assert others | {f"common.sandbox.{name}" for name in modules} <= set(found["sealed"])


@pytest.mark.slow
def test_a_solution_that_compiles_nothing_imports_no_compiler(worker, tmp_path):
    """It imports as slowly as torch; no mode and no patch needs it, nor what forks processes."""
    compiles = contextlib.closing(ForkServer("cpu", target="sm_90"))
    with compiles as server, workers(server, tmp_path) as start:
        ask(start(HALF.format("pass"), "rotate_half"))
    line = "import sys; assert 'torch._dynamo' not in sys.modules"
    started = worker(HALF.format(line), "rotate_half")
    assert ask(started)[1] == ask(started)[1] == RIGHT


CHOOSES_ITS_GPU = [
    *(f"with torch.cuda.device({of}): pass" for of in ("x.device.index", "x.device", "None")),
    "with torch.cuda.device(torch.cuda.current_device()): pass",
    "torch.cuda.synchronize()",
    "with torch.cuda.stream(torch.cuda.Stream(x.device)) as side: side.synchronize()",
    "torch.cuda.Event(enable_timing=True).record(torch.cuda.current_stream())",
    "assert isinstance(torch.cuda.Stream().record_event(), torch.cuda.Event)",
    "assert not isinstance(x, (torch.cuda.Stream, torch.cuda.Event, torch.cuda.device))",
    "torch.cuda.current_stream().wait_event(torch.cuda.default_stream().record_event())",
    "torch.cuda.synchronize = torch.cuda.get_device_name = lambda *_: 'stubbed'",
]


def test_a_launch_may_choose_its_gpu_where_none_is(worker):
    assert ask(worker(HALF.format("\n    ".join(CHOOSES_ITS_GPU)), "rotate_half"))[1] == RIGHT


ASKS = """
import torch
from triton.runtime import driver

limits = driver.active.utils.get_device_properties(driver.active.get_current_device())
of_torch, of_triton = torch.cuda.get_device_properties("cuda"), driver.active.get_current_target()
assert not torch.cuda.is_available() and not torch.cuda.device_count()
assert driver.active.get_active_torch_device() == torch.device("cpu")
assert of_torch.multi_processor_count == limits["multiprocessor_count"] == {processors}
assert of_torch.shared_memory_per_block_optin == limits["max_shared_mem"] == {shared}
assert (of_triton.backend, of_triton.arch) == {arch}
assert torch.cuda.get_device_capability() == {capability} == (of_torch.major, of_torch.minor)
assert torch.cuda.get_device_capability() == driver.active.get_device_capability()
assert torch.cuda.get_device_name(0) == of_torch.name == "{name}"

def rope(t, freqs):
    return t
"""


OF_CUDA = "torch.library.custom_op('test_process::o', half_, mutates_args=(), device_types='cuda')"
FOR_CUDA = {
    "an operator": f"o = {OF_CUDA}",
    "its packet": f"{OF_CUDA}\no = torch.ops.test_process.o",
    "no kernel": "l = torch.library.Library('test_process', 'DEF')\n"
    "l.define('o(Tensor x) -> Tensor')\no = torch.ops.test_process.o",
}
"""Operators with a kernel for CUDA alone, or with none."""
HALF_ = "def half_(x: torch.Tensor) -> torch.Tensor:\n    return half(x)\n"


@pytest.mark.parametrize("kind", FOR_CUDA)
def test_an_operator_for_cuda_alone_is_unsupported_where_no_gpu_is(worker, kind):
    source = f"{SOURCE}{HALF_}{FOR_CUDA[kind]}\ndef rotate_half(x):\n    return o(x)"
    reply, _ = ask(worker(source, "rotate_half"))
    assert reply["verdict"] == "UNSUPPORTED"
    if kind != "no kernel":
        reason = "the operator test_process::o is registered for CUDA alone, and no GPU is here"
        assert (reply["reason"], reply["kind"]) == (reason, Kind.NO_GPU)
    else:
        assert "kind" not in reply


@pytest.mark.parametrize(("first", "said"), [("y = x.cuda()", True), ("assert x.ndim > 3", False)])
def test_what_asks_for_a_gpu_fails_and_says_that_none_is_here(worker, first, said):
    reply, _ = ask(worker(HALF.format(first), "rotate_half"))
    assert reply["verdict"] == "RUNTIME_ERROR"
    assert (", no GPU is here, line " in reply["reason"]) == said, reply


@pytest.mark.parametrize(
    ("name", "full"), [("", False), ("sm_90", False), *((name, True) for name in TARGETS)]
)
@pytest.mark.slow
def test_where_no_gpu_is_the_target_answers_for_it(tmp_path, name, full):
    """The interpreter's process answers as an H100, and a compiling process as its target."""
    gpu = TARGETS[name or "sm_90"]
    source = ASKS.format(
        arch=(gpu.backend, gpu.arch), capability=gpu.capability, name=gpu.name,
        processors=gpu.processors, shared=gpu.shared,
    )  # fmt: skip
    server = ForkServer("cpu", target=name, full=full)
    with contextlib.closing(server), workers(server, tmp_path) as start:
        assert start(source).ask(RunCalls()) == {}


def can_confine() -> bool:
    """Landlock's version 6, of Linux 6.12, knows of signals."""
    return landlock_version(ctypes.CDLL(None)) >= 6


@pytest.mark.skipif(not can_confine(), reason="this kernel cannot confine a process")
@pytest.mark.parametrize(
    "reach",
    [
        "import os; os.kill(os.getppid(), 9)",
        "open('/proc/{pid}/mem', 'rb')",
        "open('/proc/{pid}/fd/0', 'rb')",
    ],
)
def test_a_worker_reaches_no_other_process(worker, reach):
    """The truth is in the harness's memory, and other solutions' answers are behind its files."""
    source = HALF.format(reach.format(pid=os.getpid()))
    assert "PermissionError" in ask(worker(source, "rotate_half"))[0]["reason"]
