"""The counted work of calls: kernels by a sample of their programs, beside torch's operators."""

import contextlib
import textwrap

import numpy as np
import pytest
import torch

from common import disk_cache, ops, solutions, wire
from common.engines import counting
from common.grading.fork_server import ForkServer
from common.grading.worker import Worker
from common.ops._names import named
from common.sandbox import counted as counting_of
from common.sandbox.shape_only import ShapeOnlyMode
from tests.support.workers import written

HOUSE = next(each for each in solutions.discover() if each.name == "house/rotate_half")
CASE = "8192x2x32x128-bfloat16"
ELEMENTS = 8192 * 2 * 32 * 128
HEAD = '''
"""A kernel."""
import torch
import triton
import triton.language as tl

'''


@pytest.fixture(scope="module")
def server():
    with contextlib.closing(ForkServer("cpu", target=wire.STAND_IN, counted=True)) as server:
        yield server


@pytest.fixture
def counted(server, tmp_path):
    """Return a function that counts a solution of `rotate_half` from its kernel and launcher."""

    def count(source, op="rotate_half", case=CASE):
        return ask(server, written(tmp_path, HEAD + textwrap.dedent(source), op), case)

    return count


def ask(server, solution, case):
    with contextlib.closing(Worker(server, solution)) as worker:
        return worker.ask(wire.AtFullShape(case=named(ops.load(solution.op), case).params))


def launch_of(reply):
    (step,) = [each for each in reply["forward"] if each["step"] == "launch"]
    return step


COPY = """
    @triton.jit
    def _copy(x, y, rows, size: tl.int64, BLOCK: tl.constexpr):
        {body}

    def rotate_half(x, *, interleaved=False):
        y = torch.empty_like(x)
        rows = x.numel() // 128
        _copy[({programs},)](x, y, rows, x.numel(), 1000, num_warps=2)
        return y
"""


def copying(body, programs="triton.cdiv(x.numel(), 1000)"):
    body = textwrap.indent(textwrap.dedent(body), " " * 8).strip()
    return COPY.format(body=body, programs=programs)


ROW = """
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(y + at, tl.load(x + at))
"""
ROWS = ELEMENTS // 128
BYTES = 2 * ELEMENTS


ALL = {"read": BYTES, "written": BYTES}
KERNELS = {
    "a copy": (ROW, "rows", ALL | {"rounds": 1}),
    "the last program has a part of a block": (
        "at = tl.program_id(0) * BLOCK + tl.arange(0, 1024)\n"
        "keep = (at < size) & (tl.arange(0, 1024) < BLOCK)\n"
        "tl.store(y + at, tl.load(x + at, mask=keep), mask=keep)",
        "triton.cdiv(x.numel(), 1000)", ALL,
    ),
    "several programs load and store the same": (
        ROW.replace("tl.program_id(0)", "(tl.program_id(0) // 2)"),
        "2 * rows", ALL | {"fetched": 2 * BYTES},
    ),
    "a program loads twice": (
        ROW.replace("+ at))", "+ at) + tl.load(x + at))"), "rows", {"fetched": BYTES}
    ),
    "a strided load takes whole sectors": (
        "tl.static_assert(size.dtype == tl.int64)\n"
        "at = tl.program_id(0) * 128 + tl.arange(0, 64) * 2\n"
        "tl.store(y + at, tl.load(x + at))",
        "rows", {"read": BYTES, "fetched": BYTES},
    ),
    **{
        loop: (
            f"for row in {loop}(0, 524288, 1):\n"
            "    at = row * 128 + tl.arange(0, 128)\n"
            "    tl.store(y + at, tl.load(x + at))",
            "1", ALL | {"rounds": ROWS},
        )
        for loop in ("range", "tl.range", "tl.static_range")
    },
    "loops within loops": (
        "for row in range(4096):\n"
        "    for part in range(128):\n"
        "        at = (row * 128 + part) * 128 + tl.arange(0, 128)\n"
        "        tl.store(y + at, tl.load(x + at))",
        "1", ALL,
    ),
    "pointers that move with a loop": (
        "at = tl.arange(0, 128)\n"
        "for row in range(524288):\n"
        "    tl.store(y + at, tl.load(x + at))\n"
        "    at += 128",
        "1", ALL,
    ),
}  # fmt: skip
"""Kernels that copy x: the body, the programs, and what is counted."""


@pytest.mark.parametrize(("body", "programs", "amounts"), KERNELS.values(), ids=KERNELS)
def test_the_bytes_and_waits_of_a_kernel_are_exact(counted, body, programs, amounts):
    found = launch_of(counted(copying(body, programs)))
    assert {name: found[name] for name in amounts} == amounts
    assert found["uncertain"] <= 0.02


@pytest.mark.parametrize(
    ("programs", "reason"),
    [("0", ""), ("1, rows", "axis y of the grid"), ("1, 1, 65_536", "axis z of the grid"),
     ("rows << 12", "axis x of the grid")],
)  # fmt: skip
def test_a_launch_without_programs_is_none_and_one_beyond_the_limits_is_refused(
    counted, programs, reason
):
    reply = counted(copying("tl.store(y, tl.load(x))", programs))
    assert reason in reply.get("reason", "") and reply.get("forward") == (None if reason else [])


@pytest.mark.parametrize(
    ("head", "share"),
    [
        ("if row % 3 == 0:", 1 / 3),
        ("for part in range(row % 2):", 1 / 2),
        ("if row % 512 >= row // 512 * 37 % 509:\n    return\nif row >= 0:", 0.497),
        ("if row < 9_000:", 9_000 / ROWS),
    ],
)
def test_more_programs_of_a_launch_run_if_they_are_unlike(counted, head, share):
    body = f"""
row = tl.program_id(0)
at = row * 128 + tl.arange(0, 128)
{head}
    tl.store(y + at, tl.load(x + at))
"""
    found = launch_of(counted(copying(body, "rows")))
    assert found["written"] == pytest.approx(share * BYTES, rel=max(0.05, 1.5 * found["uncertain"]))


INTEGERS = """
    @triton.jit
    def _plan(mask, count, size, BLOCK: tl.constexpr):
        total = 0
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            total += tl.sum(tl.load(mask + at, mask=at < size, other=0).to(tl.int32), 0)
        tl.store(count, total)

    @triton.jit
    def _work(x, y, count):
        for row in range(tl.load(count)):
            at = row * 1024 + tl.arange(0, 1024)
            tl.store(y + at, tl.load(x + at))

    def masked_linear(x, w_v, w_t, mask):
        y, count = torch.empty_like(x), torch.empty(1, dtype=torch.int32)
        _plan[(1,)](mask, count, mask.numel(), 64)
        _work[(1,)](x, y, count)
        return y
"""


def test_kernels_that_store_integers_run_whole(counted):
    case = "16384x1024x1024-bfloat16-span"
    reply = counted(INTEGERS, "masked_linear", case)
    work = reply["forward"][-1]
    assert work["kernel"] == "_work"
    assert work["written"] == 1024 * 2048, "the mask holds for a span of 1,024 tokens"


PRODUCT = """
    @triton.jit
    def _product(x, w, y, K, BLOCK: tl.constexpr):
        rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
        acc = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, K, BLOCK):
            x_tile = tl.load(x + rows * K + k + columns)
            acc = tl.dot(x_tile, tl.load(w + (k + rows) * K + columns), acc)
        tl.store(y + rows * K + columns, acc)

    def masked_linear(x, w_v, w_t, mask):
        y = torch.empty_like(x)
        _product[(256, 16)](x, w_v, y, 1024, 64)
        return torch.where(mask[:, None], y, x @ w_t.T)
"""


def test_products_of_kernels_and_of_torch(counted):
    reply = counted(PRODUCT, "masked_linear", "16384x1024x1024-bfloat16-span")
    launch = launch_of(reply)
    assert launch["flops"] == {"bf16": 2 * 16384 * 1024 * 1024} and launch["rounds"] == 1
    operators = {each["operator"]: each for each in reply["forward"] if "operator" in each}
    assert operators["mm"]["flops"] == 2 * 16384 * 1024 * 1024
    assert operators["where"]["read"] == 2 * (2 * 16384 * 1024) + 16384
    assert operators["where"]["written"] == 2 * 16384 * 1024


def test_an_unsupported_case_is_not_counted(counted):
    raises = "raise NotImplementedError('none')\n        y = torch"
    reply = counted(copying("pass").replace("y = torch", raises))
    assert (reply["verdict"], reply["reason"]) == ("UNSUPPORTED", "none")


ANGLES = """
    @triton.jit
    def kernel(t, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(t + at, mask=at < n), mask=at < n)

    def rope(t, freqs, *, tensor_format="sbhd"):
        if not torch.equal(*freqs.chunk(2, -1)):
            raise NotImplementedError("angles that differ within a pair")
        y = torch.empty_like(t)
        kernel[(triton.cdiv(t.numel(), 1024),)](t.detach(), y, t.numel(), 1024)
        return y
"""


@pytest.mark.parametrize("pairs", ["-paired", ""])
def test_what_looks_at_the_angles_is_counted_on_the_cases_that_it_answers(counted, pairs):
    reply = counted(ANGLES, "rope", f"sbhd-8192x2x32x128-bfloat16{pairs}")
    assert ("forward" in reply) == bool(pairs)


def test_backward_is_counted_with_its_forward(server):
    reply = ask(server, HOUSE, CASE)
    assert [len(reply[direction]) for direction in ("forward", "backward")] == [1, 2]


def counts():
    return list(counting.counts([HOUSE]))


@pytest.mark.slow
def test_what_was_counted_is_kept_and_a_process_that_ends_is_asked_again(monkeypatch, tmp_path):
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "ask", lambda *_, **__: {"verdict": "CRASHED", "reason": "SIGKILL"})
        assert counts() == []
    first = counts()
    assert len(first) == 6
    monkeypatch.setattr(Worker, "ask", lambda *_, **__: pytest.fail("asked again"))
    assert counts() == first
    monkeypatch.setattr(wire, "STAND_IN", "sm_80")
    with pytest.raises(pytest.fail.Exception):
        counts()


# --- samples and operators, without a process ----------------------------------------------------


def sampled(programs, number, flops=lambda at: 0):
    """A sample of a launch whose programs do nothing but products."""
    sample = counting_of.Sample(counting_of.strata(programs, number), ())
    sample.flops["bf16"][:] = [*map(flops, sample.indices)]
    return sample


@pytest.mark.parametrize("number", counting_of.STRATA)
@pytest.mark.parametrize("programs", [1, 2, 16, 17, 32, 33, 1000, 524_288])
def test_a_sample_stands_for_all(programs, number):
    sample = sampled(programs, number)
    ends = np.cumsum(sample.counts)
    assert sample.indices[0] == 0 and sample.indices[-1] == programs - 1 == ends[-1] - 1
    assert (ends - sample.counts <= sample.indices).all() and (sample.indices < ends).all()
    assert sample.uncertain() == 0 and len(ends) < 1.2 * number + 14


@pytest.mark.parametrize(
    "flops",
    [
        lambda at: 31 if 64 <= at < 128 else 1,  # few programs have half of the work
        lambda at: 1 + (at % 3 == 0),
        lambda at: at // 100,
        lambda at: 5 if 4000 <= at < 4500 else 1 if at < 8000 else 2,
    ],
)
def test_the_sums_of_a_sample_are_as_certain_as_it_says(flops):
    sample = sampled(8192, counting_of.STRATA[-1], flops)
    found = sample.total()["flops"]["bf16"]
    assert found == pytest.approx(sum(map(flops, range(8192))), rel=sample.uncertain())
    assert 0 < sample.uncertain() <= 4 * counting_of.SETTLED


def test_a_count_ends_by_its_work_and_not_by_its_time(counted):
    """A machine under load counts what an idle one does."""
    body = """
        tile = tl.load(x + tl.arange(0, 256)[:, None] * 256 + tl.arange(0, 256)[None, :])
        total = tl.zeros((256, 256), tl.float32)
        row = 0
        while row < rows:
            total = tl.dot(tile, tile, total)
            row += 1
    """
    reply = counted(copying(body, "1"))
    assert reply["verdict"] == "UNSUPPORTED" and "accesses" in reply["reason"]


LARGE, INDICES = (4096, 1024), torch.arange(2048)
X = torch.empty(LARGE)


@pytest.mark.parametrize(
    ("call", "steps"),
    [
        (lambda: torch.empty(LARGE).view(-1)[::2].unsqueeze(0), []),
        (lambda: X * X, [("mul", X.nbytes, X.nbytes)]),
        (lambda: X * torch.empty(1, 1024).expand(LARGE), [("mul", X.nbytes + 4096, X.nbytes)]),
        (lambda: X.zero_(), [("zero_", 0, X.nbytes)]),
        (lambda: X[INDICES], [("index", X.nbytes + INDICES.nbytes, X.nbytes // 2)]),
    ],
)
def test_an_operator_is_counted_by_its_shapes(call, steps):
    found = []
    with ShapeOnlyMode(ran=lambda *ran: found.append(counting_of.operator(*ran))):
        call()
    assert [(step["operator"], step["read"], step["written"]) for step in found] == steps
