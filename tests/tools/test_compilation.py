"""`study compile`: kernels of the board's cases, compiled for several targets."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import threading

import pytest
import torch

from common import disk_cache, ops, solutions
from common.commands import compile
from common.grading import fork_server
from common.records.lines import SCHEMA, Compiled
from common.tools import compilation, figures
from common.tools.compilation import Compilation
from tests.support.paired import ANSWERED, BOARD, PAIRED, refusing
from tests.support.waiting import wait_until

CASES = list(ops.load("rotate_half").tier("board", "cuda"))
PLAIN = next(case for case in CASES if not case.interleaved)
SOURCE = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n: tl.constexpr):
    tl.store(y + tl.arange(0, 4), tl.load(x + tl.arange(0, 4)) + n)

def rotate_half(x, *, interleaved=False):
    y = torch.empty_like(x)
    if interleaved:
        raise NotImplementedError("interleaved")
    kernel[(1,)](x.detach(), y, x.numel(), num_warps=WARPS)
    return y
"""


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """Return a function that compiles a file's kernels for targets, with an empty cache."""
    for module in (disk_cache, fork_server):
        monkeypatch.setattr(module, "CACHE", tmp_path / ".cache")
    folder = tmp_path / "someone"
    folder.mkdir()

    def compile(source, cases, targets, shown=False, op="rotate_half"):
        path = folder / f"{op}.py"
        path.write_text(source)
        solution = solutions.Solution(path, op)
        with Compilation() as ours:
            return [
                line for lines in ours.lines({solution: cases}, targets, shown) for line in lines
            ]

    return compile


@pytest.mark.slow
def test_kernels_are_compiled_at_the_true_shape_for_each_target(ask):
    large = max(CASES, key=lambda case: ops.load("rotate_half").work(case, "forward").bytes)
    plain = next(case for case in CASES if not case.interleaved and case.shape == large.shape)
    found = ask(SOURCE.replace("WARPS", "2"), [plain], ["sm_90", "gfx942"])
    assert [(line.kernel, line.target) for line in found] == [
        ("kernel", "sm_90"), ("kernel", "gfx942"),
    ]  # fmt: skip
    assert all(line.figures["warps"] == 2 for line in found)
    assert {line.direction for line in found} == {"forward"} and "direction" not in compile._row(
        found[0]
    )
    elements = float(math.prod(plain.shape))
    assert f"{elements:e}".rstrip("0")[:5] in compile._text("ttir", "kernel", found)
    assert "LDG" in compile._text("sass", "kernel", found)


@pytest.mark.slow
def test_what_stops_a_call_is_a_line_with_its_reason(ask):
    case = next(case for case in CASES if case.interleaved)
    (line,) = ask(SOURCE, [case], ["sm_90"])
    assert (line.kernel, line.verdict, line.reason) == ("", "UNSUPPORTED", "interleaved")
    kernel, line = ask(SOURCE.replace("WARPS", "64"), [PLAIN], ["sm_90"])
    assert kernel.figures["warps"] == 64
    assert line.verdict == "COMPILE_ERROR" and "threads, Required: 2048" in line.reason


@pytest.mark.slow
def test_what_looks_at_the_angles_is_compiled_on_the_cases_that_it_answers(ask):
    found = ask(refusing(PAIRED[0]), BOARD, ["sm_90"], op="rope")
    assert {line.case for line in found if line.kernel} == ANSWERED != set()


@pytest.mark.slow
def test_what_is_known_starts_no_process_and_what_left_the_cache_is_compiled_where_it_is_shown(
    ask, monkeypatch
):
    source = SOURCE.replace("WARPS", "4")
    (before,) = ask(source, [PLAIN], ["sm_90"])
    shutil.rmtree(disk_cache.CACHE / "kernels")
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "ForkServer", lambda *_: pytest.fail("started"))
        assert ask(source, [PLAIN], ["sm_90"]) == [before]
    (again,) = ask(source, [PLAIN], ["sm_90"], shown=True)
    assert again.figures == before.figures and "LDG" in compile._text("sass", "kernel", [again])


@pytest.mark.slow
def test_a_kernel_of_several_cases_is_measured_once(ask, monkeypatch):
    sizes = []
    measure = figures.figures
    monkeypatch.setattr(
        figures, "figures", lambda found, target: sizes.append(len(found)) or measure(found, target)
    )
    source = SOURCE.replace("x.numel()", "7").replace("if interleaved", "if False")
    alike = [case for case in CASES if case.dtype == "bfloat16"]
    found = ask(source.replace("WARPS", "4"), alike, ["sm_90"])
    assert sizes == [1]
    assert [line.case for line in found] == [case.name for case in alike] and len(alike) > 1


@pytest.mark.parametrize("line", ["import os; os._exit(3)", "import os; os.abort()"])
@pytest.mark.slow
def test_an_end_is_shown_and_not_kept(ask, line):
    dies = SOURCE.replace("    y = torch", f"    {line}\n    y = torch").replace("WARPS", "4")
    (end,) = ask(dies, [PLAIN], ["sm_90"])
    assert end.verdict == "CRASHED"
    assert not list(disk_cache.CACHE.glob("figures/*"))


@pytest.mark.slow
def test_floating_tensors_are_no_memory_and_what_each_process_would_repeat_is_done_before(ask):
    largest = max(CASES, key=lambda case: math.prod(case.shape))
    says = """
    import resource
    import sys
    from triton.runtime.cache import triton_key
    gluon = "triton.experimental.gluon.language" in sys.modules
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    hashed = triton_key.cache_info().currsize
    raise ValueError(f"took {used} bytes, hashed {hashed}, imported {gluon}")
"""
    source = SOURCE.replace("    y = torch.empty_like(x)\n", f"    y = torch.empty_like(x)\n{says}")
    (end,) = ask(
        source.replace("if interleaved", "if False").replace("WARPS", "4"), [largest], ["sm_90"]
    )
    tensor = math.prod(largest.shape) * getattr(torch, largest.dtype).itemsize
    taken = int(re.search(r"took (\d+) bytes", end.reason)[1])
    assert taken < 3 * tensor  # the process has 2 of its own
    assert "hashed 1, imported True" in end.reason


@pytest.mark.slow
def test_what_is_under_way_ends_with_the_command(ask, monkeypatch, tmp_path):
    """What sleeps would be waited for until its deadline."""
    replies, replied = [], Compilation._ask
    mark = tmp_path / "called"
    sleeps = f"    import time; open({str(mark)!r}, 'w').close(); time.sleep(10_000)\n"
    monkeypatch.setattr(
        Compilation, "_ask", lambda *what: replies.append(replied(*what)) or replies[-1]
    )
    with pytest.raises(KeyboardInterrupt), interrupted(mark.exists):
        ask(SOURCE.replace("    y = torch", f"{sleeps}    y = torch"), CASES, ["sm_90", "sm_80"])
    assert {reply["verdict"] for reply in replies} == {"CRASHED"}, "not TIMEOUT"


@contextlib.contextmanager
def interrupted(once):
    """Raise KeyboardInterrupt in the main thread once this is so.

    A shell starts its background jobs so that they ignore the signal.
    """

    def interrupt():
        wait_until(once)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def line(case="a", target="sm_90", kernel="k", registers=8):
    return Compiled(
        schema=SCHEMA, run="", solution="a/rope", op="rope", case=case, target=target, sources="",
        kernel=kernel, figures={"registers": registers},
    )  # fmt: skip


def test_cases_that_are_alike_stand_together_and_forms_of_a_kernel_apart():
    alike = compile._alike([line("a"), line("b"), line("c", registers=9)])
    assert [
        [compiled_kernels[0].case for compiled_kernels in cases] for cases in alike.values()
    ] == [["a", "b"], ["c"]]
    alike = compile._alike([line(), line(registers=9), line(target="gfx942", registers=7)])
    rows = [[(row.target, row.figures["registers"]) for row in cases[0]]
            for cases in alike.values()]  # fmt: skip
    assert rows == [[("sm_90", 8), ("gfx942", 7)], [("sm_90", 9)]]
