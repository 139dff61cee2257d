"""Kernels are compiled for a GPU that is not there, as part of a case's grade."""

import math
import re
from types import SimpleNamespace

import pytest

from common import ops, solutions
from common.grading.sweep import TooLarge
from common.grading.worker import Worker
from common.paths import ROOT
from tests.support.switches import SWITCHES, solution_text
from tests.support.workers import COPIES, ask, graded_as, launched, written

WRONG = {each.handle: each for each in solutions.discover(ROOT / "tests" / "corpus" / "wrong")}
OP = ops.load("rotate_half")
(HOUSE,) = solutions.select(solutions.discover(), "rotate_half", "house/rotate_half")
CASE = next(OP.cases("smoke"))
WAITS = "tl.extra.cuda.gdc_wait(); "
TUNED = "@triton.autotune([triton.Config({{'BLOCK': 64}}, num_warps=n) for n in {}], [])"
ASSEMBLY = (
    "value = tl.load(x); "
    "tl.store(y, tl.inline_asm_elementwise('{} $0, $1;', '=f,f', [value], tl.float32, True, 1))"
)


@pytest.fixture
def compiled(compiler, tmp_path):
    """Return a function that compiles a source, and returns its verdicts on a case that passed."""

    def compile(source, case=CASE):
        with compiler() as ours:
            graded = graded_as(OP, case, written(tmp_path, source))
            return ours.submit(graded).result().verdicts

    return compile


@pytest.fixture
def fault(compiled):
    """Return a function that compiles `kernel` and returns what is wrong with it."""

    def compile(lines=COPIES, *parts, source="", case=CASE, **named):
        verdict = compiled(source or launched(lines, *parts, **named), case)["forward"]
        return None if verdict.verdict == "PASSED" else verdict.reason

    return compile


def test_a_case_is_compiled_before_it_is_interpreted_once_another_did_not(compiler, tmp_path):
    other = next(case for case in OP.cases("smoke") if case.dtype == "float16")
    wide = launched("tl.static_assert(x.dtype.element_ty != tl.float32)")
    sources = {
        "narrow": wide,
        "none": launched("tl.static_assert(BLOCK > 64)"),
        "all": launched(COPIES),
        "caught": launched(
            "tl.static_assert(BLOCK > 64)",
            before="import contextlib\n    caught = [Exception] * (x.dtype == torch.float16)",
        ).replace("    kernel[", "    with contextlib.suppress(*caught):\n        kernel["),
    }
    found = {}
    for name, source in sources.items():
        (tmp_path / name).mkdir()
        solution = written(tmp_path / name, source)
        with compiler() as ours:
            problem = SimpleNamespace(op=OP, case=other)
            assert not ours.refusal(problem, solution), "nothing is known yet"
            ours.submit(graded_as(OP, CASE, solution)).result()
            found[name] = {each.verdict for each in ours.refusal(problem, solution).values()}
    assert CASE.dtype == "float32"
    assert found == {"narrow": set(), "none": {"COMPILE_ERROR"}, "all": set(), "caught": set()}


BELOW = """
import mmap
MAP_32BIT = 0x40
below = mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT)

def low(x):
    return torch.frombuffer(below, dtype=x.dtype, count=x.numel()).view(x.shape)
"""


def test_an_address_below_four_gigabytes_is_passed_as_a_gpus_address_is(fault):
    """Where Python is not position-independent, malloc's memory lies there."""
    lines = "tl.store(y.to(tl.pointer_type(tl.float32)) + tl.arange(0, BLOCK), tl.load(x))"
    source = launched(lines, BELOW)
    assert fault(source=source.replace("(x, y, 64)", "(x, low(x).data_ptr(), 64)")) is None
    assert "does not compile" in fault(source=source.replace("(x, y, 64)", "(x, 1 << 20, 64)"))


HELPER = """
@triton.jit{decorator}
def helper(value, BLOCK: tl.constexpr):
    {line}
    return value

"""
BLOCKS = "tl.load(x + tl.arange(0, BLOCK))"
HERE = "  # here"
PLACED = {
    "an assertion": ("", f"tl.static_assert(BLOCK == 32){HERE}"),
    "the caller of a helper without inlining": (
        HELPER.format(decorator="(noinline=True)", line="value *= 2"),
        f"value = {BLOCKS}; tl.store(y + tl.arange(0, BLOCK), helper(value, BLOCK)){HERE}",
    ),
    "a call of Triton's library": ("", f"tl.store(y, tl.sum({BLOCKS}, axis=1)){HERE}"),
    "a function that Triton does not know": ("", f"tl.store(y, torch.cos(tl.load(x))){HERE}"),
    "an assertion in Triton without a text": (
        "",
        "columns = tl.arange(0, BLOCK)[:, None] + tl.arange(0, BLOCK)[None, :]\n    "
        "a, total = tl.load(x + columns).to(tl.bfloat16), tl.zeros([BLOCK, BLOCK], tl.bfloat16)\n"
        f"    tl.store(y + columns, tl.dot(a, a, total)){HERE}",
    ),
}


def placed(reason, folder):
    """Return the line of a file that a reason quotes, after checking the quotation."""
    where = re.search(r"does not compile for sm_90: .*?\w[^,:]*, line (\d+) of (\S+): (.+)", reason)
    assert where, reason
    line = (folder / where[2]).read_text().splitlines()[int(where[1]) - 1]
    assert where[3] in line
    return line


@pytest.mark.parametrize("where", PLACED)
def test_the_place_is_the_line_that_the_compiler_was_reading(fault, tmp_path, where):
    helpers, lines = PLACED[where]
    reason = fault(lines, helpers)
    assert placed(reason, tmp_path / "somebody").endswith(HERE)
    assert ("AssertionError: assert " in reason) == where.endswith("without a text")


def test_the_place_is_in_the_file_that_launched_not_in_one_with_the_same_kernel(fault, tmp_path):
    source = launched(COPIES, rest=", 63")
    (tmp_path / "somebody").mkdir()
    for other in ("a_kernel.py", "masked_linear.py"):
        (tmp_path / "somebody" / other).write_text(f"# {other}\n{source}")
    assert "of rotate_half.py" in fault(source=source)
    assert "of a_kernel.py" in fault(source="from a_kernel import kernel, rotate_half\n")


def test_a_kept_fault_names_the_line_where_it_is_now(fault):
    source = launched(COPIES, rest=", 63")
    (before, after) = (fault(source=comment + source) for comment in ("", "# one line more\n"))
    assert before != after == re.sub(r"line (\d+)", lambda n: f"line {int(n[1]) + 1}", before)


@pytest.mark.slow
def test_each_configuration_is_compiled_in_some_case(fault):
    odd = TUNED.replace("64", "n").replace("num_warps=n", "num_warps=4")
    cases = list(OP.cases("smoke"))[:12]
    assert not any(fault(COPIES, odd.format("(64, 32)"), rest="", case=case) for case in cases)
    faults = {fault(COPIES, odd.format("(64, 65)"), rest="", case=case) for case in cases}
    assert any("power of 2" in each and "(kernel with BLOCK=65)" in each for each in faults if each)


OF_X = "@triton.heuristics({{'BLOCK': lambda arguments: arguments['x'].shape[0] - {}}})"
ROWS_OF = "tl.make_tensor_descriptor(x, [64, BLOCK], [BLOCK, 1], [{}, BLOCK]).{}"
AT_ROWS = "y + tl.arange(0, 8)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]"
LIBRARY = """from triton.language import core
from triton.language.extra import libdevice
@core.extern
def unknown(x, _semantic=None):
    names = {(core.dtype('fp32'),): ('__nv_unknown', core.dtype('fp32'))}
    return core.extern_elementwise('', '', [x], names, True, _semantic=_semantic)
"""
FAILS = """import triton.backends.nvidia.compiler as nvidia

def fail(*_):
    raise RuntimeError('PassManager::run failed')

nvidia.CUDABackend.make_ttgir = fail
"""


def with_parameters(count):
    """Return a kernel with so many further parameters."""
    values = f", 64, *range({1 << 40}, {(1 << 40) + count})"
    return COPIES, "", {"rest": values, "more": "".join(f", a{n}" for n in range(count))}


ONE = {"rest": ", 1"}
"""The arguments of a kernel of one element."""
UNTUNED = {"rest": ""}
COMPILED = {
    "a configuration fits": (COPIES, TUNED.format("(64, 4)"), UNTUNED, ""),
    "no configuration fits": (COPIES, TUNED.format("(64, 64)"), UNTUNED,
                              "threads, Required: 2048, Hardware limit: 1024"),
    "heuristics set a constant": (COPIES, OF_X.format(2), UNTUNED, ""),
    "heuristics set no power of 2": (COPIES, OF_X.format(3), UNTUNED, "power of 2"),
    "assembly": (ASSEMBLY.format("mov.f32"), "", ONE, ""),
    "no assembly": (ASSEMBLY.format("move.f32"), "", ONE, "ptxas"),
    "Triton's own assembly": (WAITS + COPIES, "", {}, ""),
    "no assembly after Triton's own": (WAITS + ASSEMBLY.format("move.f32"), "", ONE, "ptxas"),
    **{
        hints: (f"tl.store(y, tl.load(x, {hints}))", "", ONE, reason)
        for hints, reason in (
            ("volatile=True", ""), ("cache_modifier='.ca', volatile=True", "ptxas"),
            ("cache_modifier='.cg', eviction_policy='evict_first'", "ptxas"),
        )
    },
    "rows of a descriptor": (
        f"tl.store({AT_ROWS}, {ROWS_OF.format(8, 'load([0, 0])')})", "", {}, ""
    ),
    "gathered rows": (
        f"tl.store({AT_ROWS}, {ROWS_OF.format(1, 'gather(tl.arange(0, 8), 0)')})", "", {}, "ptxas"
    ),
    "libdevice": ("tl.store(y, libdevice.tanh(tl.load(x)))", LIBRARY, ONE, ""),
    "a function that no library has": ("tl.store(y, unknown(tl.load(x)))", LIBRARY, ONE, "ptxas"),
    "a limit of registers": (COPIES, "", {"rest": ", 64, maxnreg=32"}, ""),
    "an unknown option": (COPIES, "", {"rest": ", 64, ptx_options='--no-such-option'"}, "ptxas"),
    "a pass of Triton fails": (COPIES, FAILS, {},
                               "RuntimeError: PassManager::run failed (--verbose shows why)"),
    "600 parameters": (*with_parameters(600), ""),
    "4,100 parameters": (*with_parameters(4100), "too much parameter space"),
}  # fmt: skip
"""Kernels: lines, what stands before them, the launch, and a part of the fault's reason."""


@pytest.mark.parametrize(("lines", "before", "launch", "reason"), COMPILED.values(), ids=COMPILED)
def test_a_kernel_does_not_compile_for_its_compilers_reason(fault, lines, before, launch, reason):
    found = fault(lines, before, **launch) or ""
    assert reason in found and bool(found) == bool(reason)


def test_with_a_gpu_its_own_compilation_decides_and_no_case_waits(compiler):
    """Each case holds memory until it is timed."""
    graded, pulled = graded_as(OP, CASE, WRONG["a_type_of_each_branch"]), []
    with compiler("cuda") as ours:
        assert next(ours.behind(pulled.append(each) or each for each in [graded, None])) is graded
    assert pulled == [graded]
    with compiler("cpu") as ours:
        (found,) = ours.behind([graded])
    assert found.verdicts["forward"].verdict == "COMPILE_ERROR"


def test_a_process_that_ended_leaves_a_note(compiler):
    solution = WRONG["aborts"]
    op = ops.load(solution.op)
    with compiler() as ours:
        graded = graded_as(op, next(op.cases("smoke")), solution)
        found = ours.submit(graded).result().verdicts["forward"]
    assert found.verdict == "PASSED"
    assert found.notes[0].kind == "NOT_COMPILED" and "CRASHED" in found.notes[0].detail


@pytest.mark.parametrize(
    ("verdict", "then"),
    [("INCORRECT_NUMERICAL", "COMPILE_ERROR"), ("RUNTIME_ERROR", "COMPILE_ERROR"),
     ("UNSUPPORTED", "UNSUPPORTED"), ("TIMEOUT", "TIMEOUT")],
)  # fmt: skip
def test_a_fault_is_an_earlier_cause_than_a_wrong_value(compiler, verdict, then):
    with compiler() as ours:
        graded = graded_as(OP, CASE, WRONG["arange_of_zero"], verdict)
        assert ours.submit(graded).result().verdicts["forward"].verdict == then


def test_a_worker_of_a_target_runs_no_kernel(target):
    """Its results are what fresh memory holds."""
    worker = Worker(target, HOUSE)
    reply, result = ask(worker)
    assert "verdict" not in reply and all(map(math.isnan, result)), "fresh memory"
    worker.close()


def test_an_interruption_ends_what_has_not_begun_too(compiler):
    with compiler() as ours:
        ours.interrupt()
        (note,) = ours.submit(graded_as(OP, CASE, HOUSE)).result().verdicts["forward"].notes
        assert "interrupted" in note.detail
        ours.resume()
        assert not ours.submit(graded_as(OP, CASE, HOUSE)).result().verdicts["forward"].notes


FULL = next(case for case in OP.cases("board") if case.name == "8192x2x32x128-bfloat16")
COUNTED = """dirty = torch.full((1,), 1 << 30, dtype=torch.int32)
    del dirty
    programs = torch.empty(1, dtype=torch.int32)
    kernel[(1,)](x, y, 64)"""
ROWS = "x.numel() // x.shape[-1]"
AT_FULL_SHAPE = {
    "an axis": ("RUNTIME_ERROR", "axis z", {"grid": f"(1, 1, {ROWS})"}),
    "an axis of a callable": ("RUNTIME_ERROR", "axis y", {"grid": f"lambda _: (2, {ROWS})"}),
    "threads": ("COMPILE_ERROR", "threads", {"rest": f", 64, num_warps=4 if {ROWS} < 999 else 64"}),
    "a range": ("COMPILE_ERROR", "power of 2", {"rest": f", 64 if {ROWS} < 999 else 96"}),
}
WITHIN = {
    "programs on the first axis": {"grid": f"({ROWS},)"},
    "programs whose number a kernel stores": {"grid": "(1, int(programs))", "before": COUNTED},
}


@pytest.mark.parametrize("limit", AT_FULL_SHAPE)
def test_a_twin_is_held_against_the_limits_at_the_shape_of_its_board_case(compiled, limit):
    verdict, words, how = AT_FULL_SHAPE[limit]
    for found in compiled(launched(COPIES, **how), OP.twin(FULL)).values():
        assert found.verdict == verdict
        assert found.reason.startswith(f"at {FULL.name}: ") and words in found.reason
        assert " of rotate_half.py: " in found.reason


@pytest.mark.parametrize("case", [CASE, OP.twin(FULL)], ids=["small", "twin"])
@pytest.mark.parametrize("launch", WITHIN)
def test_a_launch_within_the_limits_is_no_fault_whatever_memory_holds(fault, launch, case):
    assert fault(COPIES, case=case, **WITHIN[launch]) is None


def test_a_limit_that_backward_alone_exceeds_is_its_fault_alone(compiled):
    source = f"""{launched(COPIES).partition("def rotate_half")[0]}
class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        kernel[(1, 70_000)](grad, grad, 64)
        return grad


def rotate_half(x):
    return _Function.apply(x)
"""
    for case in (CASE, OP.twin(FULL)):
        found = compiled(source, case)
        assert found["forward"].verdict == "PASSED"
        assert found["backward"].verdict == "RUNTIME_ERROR"


def test_a_refusal_at_the_full_shape_that_is_caught_is_a_note(compiled):
    source = launched(COPIES, grid=f"(1, 1, {ROWS})").replace(
        "    kernel[", "    with contextlib.suppress(RuntimeError):\n        kernel["
    )
    found = compiled(f"import contextlib\n{source}", OP.twin(FULL))["forward"]
    (note,) = found.notes
    assert found.verdict == "PASSED"
    assert note.kind == "CAUGHT" and note.detail.startswith(f"at {FULL.name}: ")
    assert "axis z" in note.detail


def test_a_twin_whose_call_needs_data_is_compiled_as_it_is(fault):
    """A large tensor has none at the full shape, whose call raises then."""
    needs = "assert x.float().abs().sum() > 0"
    twin = OP.twin(FULL)
    wrong, right = (fault(COPIES, rest=f", {n}", before=needs, case=twin) for n in (63, 64))
    assert right is None and "power of 2" in wrong


def test_the_order_stays_while_kernels_compile(compiler):
    too_large = TooLarge(OP, CASE, "too large")
    cases = list(OP.cases("smoke"))[:4]
    with compiler() as ours:
        behind = ours.behind([*(graded_as(OP, each, HOUSE) for each in cases), too_large])
        graded_cases = list(behind)
    assert [graded.case for graded in graded_cases] == [*cases, CASE]
    assert graded_cases[-1] is too_large


@pytest.mark.parametrize("switch", SWITCHES)
def test_no_switch_keeps_a_kernel_from_being_compiled(fault, switch):
    assert "power of 2" in fault(source=solution_text(**SWITCHES[switch]))
