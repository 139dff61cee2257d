"""`study compile`: kernels of the board's cases, compiled for several targets."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading

import pytest

from common import disk_cache, ops, solutions
from common.commands import compile
from common.grading import fork_server
from common.sandbox.target import TARGETS
from common.tools import compilation
from common.tools.compilation import Compiled
from tests.support.paired import ANSWERED, BOARD, PAIRED, refusing
from tests.support.waiting import interruptible, wait_until

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

    def compiled(source, cases, targets, op="rotate_half"):
        path = folder / f"{op}.py"
        path.write_text(source)
        solution = solutions.Solution(path, op)
        return list(itertools.chain(*compilation.compiled({solution: cases}, targets)))

    return compiled


def test_every_target_of_the_sandbox_can_be_asked_for():
    assert tuple(TARGETS) == compilation.TARGETS


@pytest.mark.slow
def test_kernels_are_compiled_at_the_true_shape_for_each_target(ask):
    large = max(CASES, key=lambda case: ops.load("rotate_half").work(case, "forward").bytes)
    plain = next(case for case in CASES if not case.interleaved and case.shape == large.shape)
    found = ask(SOURCE.replace("WARPS", "2"), [plain], ["sm_90", "gfx942"])
    assert [(line.kernel, line.target, line.direction) for line in found] == [
        ("kernel", "sm_90", "forward"), ("kernel", "gfx942", "forward"),
    ]  # fmt: skip
    assert all(line.figures["warps"] == 2 for line in found)
    elements = float(math.prod(plain.shape))
    assert f"{elements:e}".rstrip("0")[:5] in compile.shown("ttir", "kernel", found)
    assert "LDG" in compile.shown("sass", "kernel", found)


@pytest.mark.slow
def test_what_stops_a_call_is_a_line_with_its_reason(ask):
    case = next(case for case in CASES if case.interleaved)
    (line,) = ask(SOURCE, [case], ["sm_90"])
    assert (line.kernel, line.verdict, line.reason) == ("", "UNSUPPORTED", "interleaved")
    kernel, line = ask(SOURCE.replace("WARPS", "64"), [PLAIN], ["sm_90"])
    assert kernel.figures["warps"] == 64
    assert line.verdict == "COMPILE_ERROR" and "threads, Required: 2048" in line.reason
    dies = SOURCE.replace("    y = torch", "    import os; os.abort()\n    y = torch")
    (line,) = ask(dies, [PLAIN], ["sm_90"])
    assert line.verdict == "CRASHED"


@pytest.mark.slow
def test_a_solution_that_reads_angles_is_compiled_on_the_cases_that_it_answers(ask):
    found = ask(refusing(PAIRED[0]), BOARD, ["sm_90"], op="rope")
    assert {line.case for line in found if line.kernel} == ANSWERED != set()


@pytest.mark.slow
def test_an_interrupt_ends_the_calls_under_way(ask, monkeypatch, tmp_path):
    """What sleeps would be waited for until its deadline."""
    replies, replied = [], compilation._ask
    mark = tmp_path / "called"
    sleeps = f"    import time; open({str(mark)!r}, 'w').close(); time.sleep(10_000)\n"
    monkeypatch.setattr(
        compilation, "_ask", lambda *what: replies.append(replied(*what)) or replies[-1]
    )

    def interrupt():
        wait_until(mark.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with interruptible(), pytest.raises(KeyboardInterrupt):
            ask(SOURCE.replace("    y = torch", f"{sleeps}    y = torch"), CASES, ["sm_90"])
    finally:
        thread.join()
    assert {reply["verdict"] for reply in replies} == {"CRASHED"}, "not TIMEOUT"


# --- the table ------------------------------------------------------------------------------------


def line(case="a", target="sm_90", kernel="k", direction="forward", **figures):
    figures = dict.fromkeys(compile.FIGURES, 0) | {"registers": 8} | figures
    return Compiled("a/rope", "rope", case, target, "", kernel, direction, figures)


END = Compiled("a/rope", "rope", "d", "sm_90", "", verdict="COMPILE_ERROR", reason="too large")
LINES = [line(), line("b", registers=42), line("c"), line("c", "gfx942"),
         line(direction="backward", local=16), END]  # fmt: skip


@pytest.mark.parametrize(
    ("verbose", "rows"),
    [
        (False, [("COMPILE_ERROR: too large", "1", "", ""), ("k", "1", "8", "16"),
                 ("k", "3", "8–42", "0")]),
        (True, [("COMPILE_ERROR: too large", "1", "", ""), ("k", "1", "8", "16"),
                ("k", "2", "8", "0"), ("k", "1", "42", "0"), ("k", "1", "8", "0")]),
    ],
)  # fmt: skip
def test_a_row_has_the_ranges_over_cases_and_failures_and_spills_come_first(verbose, rows):
    shown = compile.table(LINES, verbose)
    assert [(row["kernel"].removeprefix("a/rope: "), row["cases"], row["registers"], row["local"])
            for row in shown] == rows  # fmt: skip
    assert [row.get("target") for row in shown][-1] == ("gfx942" if verbose else None)
