"""Configurations of autotuned kernels are drawn over the cases; for hooks see the corpora."""

from collections import defaultdict
from functools import partial

import pytest

from common import ops
from common.commands.report import TierReport, end
from common.grading.grade import grade_case

pytestmark = pytest.mark.slow

OP = ops.load("rotate_half")
CASES = [case for case in OP.cases("smoke") if not (case.interleaved or case.far_bytes)][::2]
SOURCE = """
from functools import partial

import torch
import triton
import triton.language as tl

def configs(values, **options):
    return [triton.Config({{"ROWS": rows}}, **options) for rows in values]

{kernels}

def launch(kernel, x):
    x = x.contiguous()
    y = torch.empty_like(x)
    half = x.shape[-1] // 2
    if x.numel():
        rows = x.numel() // (2 * half)
        kernel{launch}(x, y, rows, half, BLOCK=triton.next_power_of_2(half))
    return y

class RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return launch(forward, x)

    @staticmethod
    def backward(ctx, grad):
        return launch(backward, grad)

def rotate_half(x, *, interleaved=False):
    if interleaved:
        raise NotImplementedError("interleaved")
    return RotateHalf.apply(x)
"""
KERNEL = """
{decorators}
@triton.jit
def {name}(x, y, rows, HALF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    {first}
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    keep = (col < HALF) & (row < rows)
    at = row * 2 * HALF + col
    x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
    {store}
"""
STORES = "tl.store(y + at, -x2, mask=keep); tl.store(y + at + HALF, x1, mask=keep)"
BACKWARD = {"store": "tl.store(y + at, x2, mask=keep); tl.store(y + at + HALF, -x1, mask=keep)"}
GRID = "[lambda chosen: (triton.cdiv(rows, chosen['ROWS']),)]"
RUN = (
    ".warmup(x, y, rows, half, BLOCK=256, grid=(1,)); "
    f"partial(kernel.run, grid={GRID[1:-1]}, warmup=False)"
)
TUNED = "@triton.autotune(configs((1, 2, 4, 8)), ['rows', 'HALF'])"


PRUNED = f"{TUNED[:-1]}, prune_configs_by={{{{{{}}}}}})"
EARLY = "'early_config_prune': lambda configs, *_, **__: configs[{}]"
PARTS = {"first": "pass", "store": STORES, "launch": GRID}


@pytest.fixture
def judge(graded_source):
    """Return a function that grades a source text, and returns each case with its verdicts."""

    def grade(decorators=TUNED, cases=CASES, thorough=False, **parts):
        parts = PARTS | parts
        forward = KERNEL.format(name="forward", decorators=decorators, **parts)
        backward = KERNEL.format(name="backward", decorators=decorators, **PARTS | BACKWARD)
        source = SOURCE.format(kernels=forward + backward, launch=parts["launch"])
        found = graded_source(OP, cases, source, grade=partial(grade_case, thorough=thorough))
        return {each.case: each.verdicts for each in found}

    return grade


def configurations(found, direction="forward"):
    """Return the values that each kernel ran with in each case in which it ran."""
    taken = defaultdict(dict)
    for case, verdicts in found.items():
        for kernel, tuned in verdicts[direction].configurations.items():
            (taken[kernel][case],) = tuned.values
    return taken


def rows_of(found, kernel="forward", direction="forward"):
    return {values["ROWS"] for values in configurations(found, direction)[kernel].values()}


def passes(found):
    return all(verdict.verdict == "PASSED" for each in found.values() for verdict in each.values())


def test_all_configurations_run_and_kernels_draw_independently(judge):
    found = judge()
    assert passes(found)
    assert rows_of(found) == {1, 2, 4, 8}
    pairs = configurations(found, "backward")  # one configuration in all calls of a case
    both = {(one["ROWS"], pairs["backward"][of]["ROWS"]) for of, one in pairs["forward"].items()}
    assert len(both) > 4  # more than one of backward for one of forward
    assert configurations(found)["forward"] == pairs["forward"]


HEURISTICS = "@triton.heuristics({'BLOCK': lambda given: triton.next_power_of_2(given['HALF'])})"


@pytest.mark.parametrize(
    ("decorators", "launch", "rows"),
    [
        (f"{TUNED}\n{HEURISTICS}", GRID, {1, 2, 4, 8}),
        (f"{HEURISTICS}\n{TUNED}", GRID, {1, 2, 4, 8}),
        (TUNED, RUN, {1, 2, 4, 8}),
        (TUNED.replace("'HALF'", "'absent'"), GRID, {1, 2, 4, 8}),
        (PRUNED.format(EARLY.format("1:3")), GRID, {2, 4}),
        (PRUNED.format("'perf_model': lambda ROWS, **_: -ROWS, 'top_k': 2"), GRID, {4, 8}),
        ("@triton.autotune(configs([4]), ['rows'])", GRID, set()),
    ],
)
def test_every_form_of_a_tuner_runs_what_pruning_leaves(judge, decorators, launch, rows):
    found = judge(decorators, launch=launch)
    assert passes(found)
    assert rows_of(found) == rows


@pytest.mark.parametrize(
    ("decorators", "first", "rows"),
    [
        (TUNED, "tl.static_assert(ROWS > 2)", {4, 8}),
        ("@triton.autotune(configs([2, 4], num_warps=64) + configs([8]), ['rows'])", "pass", {8}),
        (PRUNED.format(EARLY.format(":2")), "tl.static_assert(ROWS > 2)", None),
    ],
)
def test_a_configuration_that_does_not_fit_is_left_out(judge, decorators, first, rows):
    found = judge(decorators, first=first, cases=CASES if rows else CASES[:9])
    if rows:
        assert passes(found)
        assert rows_of(found) == rows
    else:
        assert {each["forward"].verdict for each in found.values()} == {"RUNTIME_ERROR"}


def test_a_wrong_configuration_is_the_property_of_the_failures(judge, capsys):
    found = judge(store=STORES.replace("-x2", "-x2 * (1 if ROWS < 8 else 2)"))
    report = TierReport(verbose=False)
    for case, verdicts in found.items():
        report.add(OP, case, list(verdicts.values()))
    end(report.summaries("smoke", "cpu"))
    out = " ".join(capsys.readouterr().out.split())
    assert "fails where forward's ROWS = 8" in out or "fails where ROWS = 8" in out, out
    assert "launched: forward with ROWS=8" in out
    assert "forward: 4 of 4 configurations" in out


WRONG = {
    "a configuration": {"store": STORES.replace("-x2", "-x2 * (1 if ROWS < 8 else 2)")},
    "a sum": {
        "store": STORES.replace("store", "atomic_add"),
        "launch": f"; y.zero_(); kernel{GRID}",
    },
}


@pytest.mark.parametrize("parts", WRONG.values(), ids=WRONG)
def test_a_case_by_itself_shows_what_any_launch_gets_wrong(judge, parts):
    """However its first configuration and the tuner's launches are drawn."""
    for case in (case for case in CASES[:5] if case.dtype == "float32"):
        (verdicts,) = judge(cases=[case], thorough=True, **parts).values()
        assert verdicts["forward"].verdict == "INCORRECT_NUMERICAL"
        report = TierReport(verbose=False)
        report.add(OP, case, list(verdicts.values()))
        assert [*report.failures.values()] == [()], "a next round makes every kind of call"
