"""Kernels are compiled for a GPU that is not there, as part of a case's grade."""

from __future__ import annotations

import json

import pytest

from common import ops, solutions
from common.grading import compiling
from common.grading.compiling import TARGET, Compiler, compiled
from common.grading.fork_server import ForkServer
from common.grading.problem import make_problem
from common.grading.worker import Worker
from common.paths import ROOT
from common.sandbox.compiled.target import TARGETS
from common.verdicts import Verdict

WRONG = {each.handle: each for each in solutions.discover(ROOT / "tests" / "wrong")}
OP = ops.load("rotate_half")
PROBLEM = make_problem(OP, next(OP.cases("smoke")), 5, "cpu")
GENERATED = '''
"""A kernel whose source is made at run time; its range is no power of two."""
import tempfile

import torch
import triton
import triton.language as tl

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def kernel(x, y):
    offs = tl.arange(0, WIDTH)
    tl.store(y + offs, -tl.load(x + offs))
"""


def rotate_half(x, *, interleaved=False):
    import importlib.util
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(SOURCE.replace("WIDTH", str(x.numel() - 1)))
    spec = importlib.util.spec_from_file_location("generated", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    y = torch.empty_like(x)
    module.kernel[(1,)](x, y)
    return y
'''


@pytest.fixture(scope="module")
def target():
    server = ForkServer("cpu", target=TARGET)
    yield server
    server.close()


@pytest.fixture
def compiler(target, monkeypatch, tmp_path):
    """Return a compiler whose server is this module's, and whose cache is empty."""
    monkeypatch.setattr(compiling, "CACHE", tmp_path)
    monkeypatch.setattr(compiling, "ForkServer", lambda *how: target)
    monkeypatch.setattr(target, "close", lambda: None)
    return Compiler


def test_what_compiles_has_no_fault(compiler):
    (house,) = solutions.select(solutions.discover(), "rotate_half", "house")
    with compiler() as ours:
        assert ours.faults(PROBLEM, house) == {}


def test_what_interprets_need_not_compile(compiler):
    with compiler() as ours:
        found = ours.faults(PROBLEM, WRONG["a_type_of_each_branch"])
    assert found.keys() == {"forward", "backward"}
    assert all(f"not compile for {TARGET}" in each for each in found.values())
    assert "type" in found["forward"]


@pytest.mark.parametrize(
    ("handle", "words"),
    [
        ("more_threads_than_a_block_has", "threads, Required: 2048, Hardware limit: 1024"),
        ("more_shared_memory_than_there_is", "shared memory, Required: 311296"),
    ],
)
def test_a_kernel_is_held_against_the_limits_of_the_target(compiler, handle, words):
    solution = WRONG[handle]
    op = ops.load(solution.op)
    problem = make_problem(op, next(op.cases("smoke")), 5, "cpu")
    with compiler() as ours:
        assert words in ours.faults(problem, solution)["forward"]


def test_source_that_is_made_at_run_time_is_compiled_too(compiler, tmp_path):
    path = tmp_path / "someone" / "rotate_half.py"
    path.parent.mkdir()
    path.write_text(GENERATED)
    with compiler() as ours:
        found = ours.faults(PROBLEM, solutions.Solution(path, "rotate_half"))
    assert "power of 2" in found["forward"]


def test_what_is_known_is_not_asked_again(compiler, monkeypatch, tmp_path):
    solution = WRONG["a_type_of_each_branch"]
    with compiler() as ours:
        found = ours.faults(PROBLEM, solution)
    monkeypatch.setattr(compiling, "_ask", lambda *_: pytest.fail("asked again"))
    with compiler() as ours:
        assert ours.faults(PROBLEM, solution) == found


@pytest.mark.parametrize("text", ["", "[]", '{"key": "of other sources", "faults": {"x": {}}}'])
def test_a_cache_of_other_sources_says_nothing(compiler, monkeypatch, tmp_path, text):
    solution = WRONG["a_type_of_each_branch"]
    path = tmp_path / "compiled" / "a_type_of_each_branch-rotate_half.json"
    path.parent.mkdir()
    path.write_text(text)
    with compiler() as ours:
        found = ours.faults(PROBLEM, solution)
    assert found
    assert json.loads(path.read_text())["faults"] == {PROBLEM.case.name: found}


def test_nothing_is_known_of_a_process_that_ended(compiler, tmp_path):
    op = ops.load(WRONG["aborts"].op)
    problem = make_problem(op, next(op.cases("smoke")), 5, "cpu")
    with compiler() as ours:
        assert ours.faults(problem, WRONG["aborts"]) == {}
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("verdict", "after"),
    [
        ("PASSED", "COMPILE_ERROR"),
        ("INCORRECT_NUMERICAL", "COMPILE_ERROR"),
        ("RUNTIME_ERROR", "COMPILE_ERROR"),
        ("UNSUPPORTED", "UNSUPPORTED"),
        ("COMPILE_ERROR", "COMPILE_ERROR"),
    ],
)
def test_a_fault_is_an_earlier_cause_than_a_wrong_value(verdict, after):
    found = {
        each: Verdict("a/b", "op", "case", each, verdict, "its own", 1.0)
        for each in ("forward", "backward")
    }
    got = compiled(found, {"backward": "of the compiler"})
    assert got["forward"] == found["forward"]
    assert got["backward"].verdict == after
    ours = after == verdict
    assert got["backward"].reason == ("its own" if ours else "of the compiler")
    assert got["backward"].error == (1.0 if ours else None)


def test_only_cuda_and_hip_are_targets():
    assert {each.backend for each in TARGETS.values()} == {"cuda", "hip"}
    assert TARGET in TARGETS


def test_a_worker_of_a_target_runs_no_kernel(target):
    """Its results are what fresh memory holds."""
    (house,) = solutions.select(solutions.discover(), "rotate_half", "house")
    worker = Worker(target, house)
    slots = compiling._laid(PROBLEM, worker)
    call = compiling.call_json(OP, PROBLEM.arguments, slots.inputs)
    place = slots.results["output", 0]
    assert not worker.ask("forward", call=call, result=place.json(), poison=7.0).get("verdict")
    assert (worker._arena.tensor(place) == 7.0).all()
    worker.close()
