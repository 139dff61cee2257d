"""`compile`: kernels of the board's cases for several targets, and the figures of known ones."""

import itertools
import math

import pytest

from common import disk_cache, ops
from common.commands import compile
from common.commands.compile import Compiled
from common.grading import fork_server
from common.sandbox.target import TARGETS
from tests.support.workers import COPIES, launched, written

OP = ops.load("rotate_half")
CASES = list(OP.tier("board", "cuda"))
PLAIN = next(case for case in CASES if case.name == "8192x2x32x128-bfloat16")
ADDS = "at = tl.arange(0, BLOCK); tl.store(y + at, tl.load(x + at) + n)"
PRODUCT = """at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tile = tl.load(x + at)
    tl.store(y + at, tl.dot(tile, tile).to(y.dtype.element_ty))"""


def launching(block=1024, **options):
    given = "".join(f", {name}={value}" for name, value in options.items())
    return launched(ADDS, more=", n: tl.constexpr", rest=f", {block}, x.numel(){given}")


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Return a function that compiles a source for targets, with an empty cache."""
    for module in (disk_cache, fork_server):
        monkeypatch.setattr(module, "CACHE", tmp_path / ".cache")

    def of_source(source, targets=("sm_90",), case=PLAIN):
        solution = written(tmp_path, source)
        return list(itertools.chain(*compile.compiled({solution: [case]}, targets)))

    return of_source


def test_every_target_of_the_sandbox_can_be_asked_for():
    assert tuple(TARGETS) == compile.TARGETS


@pytest.mark.slow
def test_kernels_are_compiled_at_the_true_shape_for_each_target(compiled):
    found = compiled(launching(num_warps=2), ["sm_90", "gfx942"])
    assert [(line.kernel, line.target, line.direction) for line in found] == [
        ("kernel", "sm_90", "forward"), ("kernel", "gfx942", "forward"),
    ]  # fmt: skip
    assert all(line.figures["warps"] == 2 for line in found)
    elements = float(math.prod(PLAIN.shape))
    assert f"{elements:e}".rstrip("0")[:5] in compile.shown("ttir", "kernel", found)
    assert "LDG" in compile.shown("sass", "kernel", found)


@pytest.mark.slow
def test_what_stops_a_call_is_a_line_with_its_reason(compiled):
    lacks = launched(COPIES, before="if interleaved: raise NotImplementedError('interleaved')")
    (line,) = compiled(lacks, case=next(case for case in CASES if case.interleaved))
    assert (line.kernel, line.verdict, line.reason) == ("", "UNSUPPORTED", "interleaved")
    kernel, line = compiled(launching(num_warps=64))
    assert kernel.figures["warps"] == 64
    assert line.verdict == "COMPILE_ERROR" and "threads, Required: 2048" in line.reason
    (line,) = compiled(launched(COPIES, before="import os; os.abort()"))
    assert line.verdict == "CRASHED"


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
@pytest.mark.slow
def test_figures_are_those_that_the_kernel_must_have(compiled, target):
    sources = launching(2048, num_warps=8), launching(16384), launched(PRODUCT)
    short, long, product = (compiled(each, [target])[0].figures for each in sources)
    assert (short["warps"], short["shared"], short["local"]) == (8, 0, 0)
    assert long["registers"] > 1.5 * short["registers"]
    assert product["shared"] > 0


@pytest.mark.slow
def test_registers_that_do_not_fit_are_local_memory(compiled):
    (bound,) = compiled(launching(16384, maxnreg=24))
    assert bound.figures["registers"] <= 24 and bound.figures["local"] > 100


# --- the table ------------------------------------------------------------------------------------


def line(case="a", target="sm_90", kernel="k", direction="forward", **figures):
    figures = dict.fromkeys(compile.FIGURES, 0) | {"registers": 8} | figures
    return Compiled("a/rope", case, target, kernel, direction, figures)


END = Compiled("a/rope", "d", "sm_90", verdict="COMPILE_ERROR", reason="too large")
LINES = [line(), line("b", registers=42), line("c"), line("c", "gfx942"),
         line(direction="backward", local=16), END]  # fmt: skip


def test_a_row_has_the_ranges_over_cases_and_failures_and_spills_come_first():
    assert [(row[0], *row[2:5]) for row in compile.table(LINES).rows] == [
        ("a/rope: COMPILE_ERROR: too large", "1", "", ""),
        ("a/rope: k", "1", "8", "16"),
        ("a/rope: k", "3", "8–42", "0"),
    ]
