"""The counted work of calls: kernels by a sample of their programs, beside torch's operators."""

from __future__ import annotations

import textwrap

import pytest

from common import disk_cache, ops, solutions, wire
from common.grading import counting
from common.grading.fork_server import ForkServer
from common.grading.worker import Worker
from common.sandbox.counted import sample
from common.solutions import Solution
from tests.support.paired import ANSWERED, BOARD, PAIRED, refusing

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
    fork_server = ForkServer("cpu", target=counting.TARGET, counted=True)
    yield fork_server
    fork_server.close()


@pytest.fixture
def counted(server, tmp_path):
    """Return a function that counts a solution of `rotate_half` from its kernel and launcher."""

    def count(source, op="rotate_half", case=CASE):
        path = tmp_path / "someone" / f"{op}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEAD + textwrap.dedent(source))
        return ask(server, Solution(path, op), case)

    return count


def ask(server, solution, case):
    worker = Worker(server, solution)
    try:
        return worker.ask(wire.AtFullShape(case=case))
    finally:
        worker.close()


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
    return COPY.format(
        body=textwrap.indent(textwrap.dedent(body), " " * 8).strip(), programs=programs
    )


def test_a_number_has_its_annotated_type(counted):
    body = """
        tl.static_assert(size.dtype == tl.int64)
        tl.store(y, tl.load(x))
    """
    assert launch_of(counted(copying(body, "1")))["loaded"] == 2


@pytest.mark.slow
def test_a_copy_loads_and_stores_each_element_once(counted):
    body = """
        at = tl.program_id(0) * BLOCK + tl.arange(0, 1024)
        keep = (at < size) & (tl.arange(0, 1024) < BLOCK)
        tl.store(y + at, tl.load(x + at, mask=keep), mask=keep)
    """
    found = launch_of(counted(copying(body)))
    assert found["loaded"] == found["stored"] == pytest.approx(2 * ELEMENTS, rel=1e-5)
    assert found["read"] == found["written"] == 2 * ELEMENTS
    assert found["grid"] == [-(-ELEMENTS // 1000), 1, 1] and found["warps"] == 2
    assert found["sampled"] < 2 * sample.PROGRAMS, "the last one alone has a part of a block"
    assert found["uncertain"] == 0
    assert found["rounds"] == 1 and found["constants"] == {"BLOCK": 1000}


def test_what_several_programs_load_is_read_once(counted):
    body = """
        at = tl.arange(0, 128)
        tl.store(y + tl.program_id(0) * 128 + at, tl.load(x + at))
    """
    found = launch_of(counted(copying(body, "rows")))
    rows = ELEMENTS // 128
    assert found["loaded"] == found["fetched"] == rows * 256
    assert found["written"] == 2 * ELEMENTS
    assert found["read"] == 256


def test_what_a_program_loads_twice_is_fetched_once(counted):
    body = """
        at = tl.program_id(0) * 128 + tl.arange(0, 128)
        tl.store(y + at, tl.load(x + at) + tl.load(x + at))
    """
    found = launch_of(counted(copying(body, "rows")))
    assert found["requested"] == 2 * found["fetched"] == 4 * ELEMENTS


def test_a_strided_load_requests_whole_sectors(counted):
    body = """
        at = tl.program_id(0) * 128 + tl.arange(0, 64) * 2
        tl.store(y + at, tl.load(x + at))
    """
    found = launch_of(counted(copying(body, "rows")))
    assert found["loaded"] == ELEMENTS and found["requested"] == 2 * ELEMENTS


@pytest.mark.parametrize("loop", ["range", "tl.range", "tl.static_range"])
def test_a_sample_of_a_loop_stands_for_all_of_it(counted, loop):
    body = f"""
        for row in {loop}(0, 524288, 1):
            at = row * 128 + tl.arange(0, 128)
            tl.store(y + at, tl.load(x + at))
    """
    found = launch_of(counted(copying(body, "1")))
    assert found["loaded"] == found["read"] == found["written"] == 2 * ELEMENTS
    assert found["rounds"] == ELEMENTS // 128


def test_loops_within_loops_multiply(counted):
    body = """
        for row in range(4096):
            for part in range(128):
                at = (row * 128 + part) * 128 + tl.arange(0, 128)
                tl.store(y + at, tl.load(x + at))
    """
    assert launch_of(counted(copying(body, "1")))["stored"] == 2 * ELEMENTS


def test_pointers_that_move_with_a_loop(counted):
    body = """
        at = tl.arange(0, 128)
        for row in range(524288):
            tl.store(y + at, tl.load(x + at))
            at += 128
    """
    found = launch_of(counted(copying(body, "1")))
    assert found["loaded"] == found["read"] == found["written"] == 2 * ELEMENTS


def test_a_persistent_kernel_asks_the_target_for_its_processors(counted):
    body = """
        for row in range(tl.program_id(0), rows, tl.num_programs(0)):
            at = row * 128 + tl.arange(0, 128)
            tl.store(y + at, tl.load(x + at))
    """
    driver = "triton.runtime.driver.active"
    sms = f"{driver}.utils.get_device_properties({driver}.get_current_device())"
    found = launch_of(counted(copying(body, f'{sms}["multiprocessor_count"]')))
    assert found["grid"] == [132, 1, 1] and found["longest"] < 1.01
    assert found["loaded"] == found["read"] == pytest.approx(2 * ELEMENTS, rel=1e-3)


def test_a_launch_without_programs_is_none(counted):
    assert counted(copying("pass", "0"))["forward"] == []


@pytest.mark.parametrize(
    ("programs", "axis"), [("1, rows", "y"), ("1, 1, 65_536", "z"), ("rows << 12", "x")]
)
def test_a_launch_beyond_the_limits_is_refused_and_not_counted(counted, programs, axis):
    reply = counted(copying("tl.store(y, tl.load(x))", programs))
    assert reply["verdict"] == "RUNTIME_ERROR" and "forward" not in reply
    assert f"axis {axis} of the grid" in reply["reason"]


def exact_within_the_interval(found, exact, amount="stored"):
    assert abs(found[amount] - exact) <= max(found["uncertain"], sample.NARROW) * found[amount], (
        found
    )


def test_unlike_programs_are_sampled_more(counted):
    body = """
        at = tl.program_id(0) * 128 + tl.arange(0, 128)
        for part in range(tl.program_id(0) % 64):
            tl.store(y + at, tl.load(x + at))
    """
    found = launch_of(counted(copying(body, "rows")))
    assert sample.MORE_PROGRAMS <= found["sampled"] <= sample.MOST_PROGRAMS
    assert 0.02 < found["uncertain"] < 0.4
    exact_within_the_interval(found, 31.5 * 2 * ELEMENTS)


LEAVE = {
    "return": """
        number, place = tl.program_id(0) // 512, tl.program_id(0) % 512
        if place >= number * 37 % 509:
            return
        tl.store(y + at, tl.load(x + at))
    """,
    "branch on a loaded value": """
        length = tl.load(x.to(tl.pointer_type(tl.int8)) + tl.program_id(0)) * 0
        if length + tl.program_id(0) % 512 < tl.program_id(0) // 512 * 37 % 509:
            tl.store(y + at, tl.load(x + at))
    """,
}


def worked(rows):
    """Return the number of rows that have work in LEAVE and in the masked and looping kernels."""
    return sum(row % 512 < row // 512 * 37 % 509 for row in range(rows))


@pytest.mark.parametrize("body", LEAVE.values(), ids=LEAVE)
def test_programs_that_leave_at_once_are_told_from_the_others(counted, body):
    body = "at = tl.program_id(0) * 128 + tl.arange(0, 128)\n" + textwrap.dedent(body)
    found = launch_of(counted(copying(body, "rows")))
    assert found["stored"] == found["written"] == worked(ELEMENTS // 128) * 256
    assert found["uncertain"] == 0 and found["sampled"] <= 4 * sample.PROGRAMS


UNEVEN = {
    "masked": ("rows", """
        row = tl.program_id(0)
        keep = (tl.arange(0, 128) >= 0) & (row % 512 < row // 512 * 37 % 509)
        at = row * 128 + tl.arange(0, 128)
        tl.store(y + at, tl.load(x + at, mask=keep), mask=keep)
    """),
    "looping": ("132", """
        for row in range(tl.program_id(0), rows, tl.num_programs(0)):
            if row % 512 < row // 512 * 37 % 509:
                at = row * 128 + tl.arange(0, 128)
                tl.store(y + at, tl.load(x + at))
    """),
}  # fmt: skip


@pytest.mark.parametrize(("programs", "body"), UNEVEN.values(), ids=UNEVEN)
def test_uncertain_work_has_an_interval_that_holds_the_exact_work(counted, programs, body):
    found = launch_of(counted(copying(body, programs)))
    assert found["uncertain"] > 0.02
    exact_within_the_interval(found, worked(ELEMENTS // 128) * 256)


def test_programs_of_a_rare_kind_are_found_by_where_they_begin(counted):
    """As in a kernel whose first programs sum a weight's gradient over all tokens."""
    body = """
        at = tl.program_id(0) * 128 + tl.arange(0, 128)
        again = 1
        if tl.program_id(0) < 300:
            again = 40
        for part in range(again):
            tl.store(y + at, tl.load(x + at))
    """
    found = launch_of(counted(copying(body, "rows")))
    exact = 2 * ELEMENTS * (1 + 39 * 300 / found["grid"][0])
    assert found["loaded"] == pytest.approx(exact, rel=0.01)
    assert sample.PROGRAMS < found["sampled"] < sample.MORE_PROGRAMS


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
    assert work["kernel"] == "_work" and work["rounds"] == 1024 + 1
    assert work["stored"] == 1024 * 2048, "the mask holds for a span of 1,024 tokens"


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
    assert launch["flops"] == {"bf16": 2 * 16384 * 1024 * 1024} and launch["tile"] == [64, 64, 64]
    assert launch["rounds"] == 1
    operators = {each["operator"]: each for each in reply["forward"] if "operator" in each}
    assert operators["mm"]["flops"] == 2 * 16384 * 1024 * 1024
    assert operators["where"]["read"] == 2 * (2 * 16384 * 1024) + 16384
    assert operators["where"]["written"] == 2 * 16384 * 1024


@pytest.mark.slow
def test_a_solution_takes_the_configurations_of_the_target(server):
    solution = next(
        each for each in solutions.discover() if each.name == "wenhaoli_xmu/masked_linear"
    )
    found = launch_of(ask(server, solution, "2048x1024x1024-bfloat16-span"))
    assert (found["constants"]["BLOCK_K"], found["stages"]) != (32, 3), "the default of no GPU"


@pytest.mark.slow
def test_the_numbers_are_the_same_again(server):
    solution = next(each for each in solutions.discover() if each.name == "wenhaoli_xmu/masked_ffn")
    case = "16384x1024x2048-bfloat16-random"
    assert ask(server, solution, case) == ask(server, solution, case)


def test_an_unsupported_case_is_not_counted(counted):
    source = copying("pass").replace(
        "y = torch", "raise NotImplementedError('none')\n        y = torch"
    )
    assert counted(source) == {"verdict": "UNSUPPORTED", "reason": "none"}


@pytest.mark.parametrize("paired", PAIRED)
@pytest.mark.slow
def test_what_looks_at_the_angles_is_counted_on_the_cases_that_it_answers(counted, paired):
    source = refusing(paired)
    found = {case.name for case in BOARD if "forward" in counted(source, "rope", case.name)}
    assert found == ANSWERED != set()


def test_backward_is_counted_with_its_forward(server):
    solution = next(each for each in solutions.discover() if each.name == "house/rotate_half")
    reply = ask(server, solution, CASE)
    assert [len(reply[direction]) for direction in ("forward", "backward")] == [1, 2]


@pytest.mark.slow
def test_what_was_counted_is_kept(monkeypatch, tmp_path):
    chosen = [solution for solution in solutions.discover() if solution.name == "house/rotate_half"]
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path)
    first = list(counting.count(chosen))
    monkeypatch.setattr(Worker, "ask", lambda *_, **__: pytest.fail("asked again"))
    assert list(counting.count(chosen)) == first and len(first) == 2 * len(
        list(ops.load("rotate_half").cases("board"))
    )
    monkeypatch.setattr(counting, "TARGET", "sm_80")
    with pytest.raises(pytest.fail.Exception):
        list(counting.count(chosen))


@pytest.mark.slow
def test_a_process_that_ends_is_asked_again(monkeypatch, tmp_path):
    chosen = [solution for solution in solutions.discover() if solution.name == "house/rotate_half"]
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "ask", lambda *_, **__: {"verdict": "CRASHED", "reason": "SIGKILL"})
        assert list(counting.count(chosen)) == []
    assert len(list(counting.count(chosen))) == 6
