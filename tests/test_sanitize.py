"""compute-sanitizer and triton-viz: what they say decides; for the former a stand-in runs here."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

from common import cli, ops
from common.errors import UserError
from common.paths import CONTRIBUTORS, ROOT
from common.sandbox.alone import smoke
from common.solutions import Solution
from common.tools import compute_sanitizer
from common.tools.compute_sanitizer import NVIDIA, SYMBOLIC, read

ROTATE_HALF = ops.load("rotate_half")
CASES = list(ROTATE_HALF.cases("smoke"))[:3]
HOUSE = Solution(CONTRIBUTORS / "house" / "rotate_half.py", "rotate_half")


def sanitized(solution=HOUSE, tools=NVIDIA, cases=CASES):
    return compute_sanitizer.sanitize([solution], [(ops.load(solution.op), cases)], tools)


# --- compute-sanitizer ----------------------------------------------------------------------------

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors"
OURS = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at _kernel+0x1d0 in rotate_half.py:18
=========     by thread (3,0,0) in block (0,0,0)
=========     Access to 0x7f6510c00800 is out of bounds
3x2x5x22-float32: called
========= ERROR SUMMARY: 1 error"""
LIBRARY = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::reduce_kernel<512, 1>(T3)+0x1d0
=========     by thread (3,0,0) in block (0,0,0)
========= ERROR SUMMARY: 1 error"""
HOST = """\
========= Host API memory access error at host access to 0x7f7fcdc01200 of size 400 bytes
=========     Uninitialized access at 0x7f7fcdc01300 on access by cudaMemcpy source
========= ERROR SUMMARY: 1 error"""
RACE = """\
========= Error: Race reported between Write access at _kernel+0x50 in rope.py:41
=========     and Read access at _kernel+0x90 in rope.py:51 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"""
MANY = CLEAN.replace("0 errors", "1924 errors") + (
    "\n========= ERROR SUMMARY: 924 errors were not printed because the limit was reached"
)


@pytest.mark.parametrize(
    ("output", "found", "libraries", "blocks"),
    [
        (CLEAN, 0, 0, 0), (OURS, 1, 0, 1), (LIBRARY, 0, 1, 0), (HOST, 0, 1, 0),
        (HOST.replace("Uninitialized", "Invalid"), 1, 0, 1), (RACE, 1, 0, 1),
        (MANY, 1924, 0, 0),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, 0, 0),
    ],
)  # fmt: skip
def test_what_a_tool_counts_and_whose_it_is(output, found, libraries, blocks):
    report = read(output)
    assert (report.found, report.libraries, len(report.blocks)) == (found, libraries, blocks)


def test_a_report_is_whole():
    assert read(OURS).blocks == [OURS.partition("\n")[2].partition("\n3x2x5x22")[0]]


@pytest.mark.parametrize("output", ["", "Segmentation fault", "========= COMPUTE-SANITIZER"])
def test_no_summary_is_no_report(output):
    assert read(output) is None


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A compute-sanitizer that says what it is told to, and notes how it was called."""

    def make(says: str, code: int = 0, then: str = ""):
        folder = tmp_path / "bin"
        folder.mkdir()
        path = folder / "compute-sanitizer"
        (folder / "says").write_text(f"{says}\n")
        path.write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\necho $PYTORCH_NO_CUDA_MEMORY_CACHING'
            f" $TRITON_INTERPRET >> {tmp_path}/settings\ncat {folder}/says\n{then}\nexit {code}\n"
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        return tmp_path / "calls"

    return make


@pytest.mark.parametrize(
    ("says", "code", "clean", "line"),
    [
        (CLEAN, 0, True, "nothing found, 0 of 3 cases called"),
        (OURS, 0, False, "1 found, 1 of 3 cases called"),
        (LIBRARY, 0, True, "nothing found, 1 in libraries, 0 of 3 cases called"),
        (CLEAN, 134, False, "nothing found, 0 of 3 cases called, ended with 134"),
    ],
)
def test_what_the_tools_count_decides(tool, tmp_path, says, code, clean, line, capsys):
    calls = tool(says, code)
    assert sanitized() == clean
    out = capsys.readouterr().out
    assert [f"{each} house/rotate_half: {line}" in out for each in NVIDIA] == [True] * 3
    assert ("rotate_half.py:18" in out) == (says is OURS)
    lines = calls.read_text().splitlines()
    assert [each.split()[1] for each in lines] == list(NVIDIA)
    ends = f"-m common.sandbox.alone.smoke {HOUSE.path} rotate_half {' '.join(case.name for case in CASES)}"
    assert all(each.endswith(ends) for each in lines)
    assert [("--padding" in each) for each in lines] == [True, False, False]
    assert (tmp_path / "settings").read_text().splitlines() == ["1 0"] * 3


def test_one_tool_is_enough(tool):
    tool(CLEAN, then='[ "$2" = memcheck ] && exit 134')
    assert sanitized(tools=["racecheck", "initcheck"])
    assert not sanitized()


def test_what_does_not_end_is_ended_with_all_that_it_started(tool, tmp_path, monkeypatch, capsys):
    tool(CLEAN, then=f"sleep 60 & echo $! > {tmp_path}/child\nwait")
    monkeypatch.setattr(compute_sanitizer, "SECONDS", 1)
    assert not sanitized(tools=["memcheck"])
    assert "no end within 1 s" in capsys.readouterr().out
    child = int((tmp_path / "child").read_text())
    for _ in range(50):
        if not running(child):
            return
        time.sleep(0.1)
    pytest.fail("what the tool started goes on")


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_tool_that_cannot_start_is_a_fault(tool):
    tool("========= Error: No attachable process found\n========= good-bye", 1)
    with pytest.raises(UserError, match="memcheck told of no result: Error: No attachable process"):
        sanitized()


def test_no_tool_is_a_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(UserError, match="neither on the path nor in"):
        sanitized()


def test_the_tool_is_looked_for_where_cuda_is(tool, monkeypatch, tmp_path):
    tool(CLEAN)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert compute_sanitizer.executable() == str(tmp_path / "bin" / "compute-sanitizer")


RIGHT = """
    import torch

    def rotate_half(x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)
"""


def written(folder, text, name="alice/rotate_half.py"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return Solution(path, "rotate_half")


def test_each_case_is_called_or_says_why_not(tmp_path):
    path = written(tmp_path, RIGHT).path
    said = [smoke.call(path, ROTATE_HALF, case, "cpu") for case in CASES]
    assert said == ["called", "called", "does not take interleaved"]


def test_backward_is_called_too(tmp_path):
    text = RIGHT.replace("return torch.cat((-x2, x1), dim=-1)", "return Function.apply(x)").replace(
        "import torch\n",
        """import torch

    class Function(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.clone())

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("no way back")
""",
    )
    path = written(tmp_path, text).path
    said = smoke.call(path, ROTATE_HALF, CASES[0], "cpu")
    assert said.startswith("ValueError: no way back, line ")


# --- triton-viz: what becomes of what it says -----------------------------------------------------

# Its modules as far as they are used; each kernel is accused at once.
STAND_IN = {
    "__init__": """
        import types

        def trace(client):
            where = types.SimpleNamespace(lineno=9, filename="/a/rotate_half.py", line_of_code=" x")
            client.records.append(types.SimpleNamespace(
                op_type=int, tensor_name="y", user_code_tracebacks=[where]))
            return lambda kernel: kernel
    """,
    "core/callbacks": "ForLoopCallbacks = dict",
    "core/data": "Store = int",
    "clients/sanitizer/sanitizer": """
        class SymbolicSanitizer:
            def __init__(self, abort_on_error):
                assert not abort_on_error
                self.records = []
    """,
}
ACCUSED = "    import triton\n    triton.jit(lambda: None)\n" + RIGHT


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    for name, text in STAND_IN.items():
        path = tmp_path / "site" / "triton_viz" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def first(statement, text=RIGHT):
    return text.replace("x1, x2 =", f"{statement}\n        x1, x2 =")


@pytest.mark.parametrize(
    ("text", "clean", "said"),
    [
        (RIGHT, True, "nothing found\n"),
        (first("print('{}')"), True, "nothing found\n"),
        (ACCUSED, False, "writes outside of y, line 9 of rotate_half.py: x\n"),
        (first("raise NotImplementedError('blocks')"), True, "cannot follow: blocks\n"),
        (first("import os; os._exit(0)"), True, "cannot follow: its process ended with 0\n"),
        (first("import os; os.abort()"), True, "cannot follow: its process ended with -6\n"),
        (
            first("raise ValueError('stuck')", ACCUSED),
            False,
            "writes outside of y, line 9 of rotate_half.py: x; cannot follow: ValueError: stuck",
        ),
    ],
)
def test_what_is_found_decides_and_what_cannot_be_followed_does_not(
    stand_in, tmp_path, text, clean, said, capsys
):
    solution = written(tmp_path, text)
    assert sanitized(solution, [SYMBOLIC], CASES[:1]) == clean
    out = capsys.readouterr().out
    assert out.startswith(f"triton-viz alice/rotate_half {CASES[0].name}: {said}")


def test_a_case_without_an_end_costs_itself_alone(stand_in, tmp_path):
    text = first("while x.dtype == torch.float32: pass")
    path = written(tmp_path, text).path
    names = [CASES[0].name, "10x2x4x8-bfloat16"]
    program = PLAIN.replace("symbolic;", "symbolic; symbolic.SECONDS = 4;")
    stopped = [row["stopped"] for row in symbolic(program, path, names)]
    assert stopped == ["no end within 4 s", ""]


def test_what_does_not_run_here_is_a_fault(stand_in, tmp_path):
    (tmp_path / "site" / "triton_viz" / "__init__.py").write_text("import nowhere")
    with pytest.raises(UserError, match=r"does not run here: ModuleNotFoundError: .*nowhere"):
        sanitized(written(tmp_path, RIGHT), [SYMBOLIC])


def test_no_triton_viz_is_a_fault(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="triton-viz is not installed: nox -s sanitize -- --tool"):
        sanitized(tools=[SYMBOLIC])


@pytest.mark.parametrize(
    ("given", "tools"),
    [
        ([], list(NVIDIA)),
        (["--tool", "racecheck"], ["racecheck"]),
        (["--tool", SYMBOLIC], [SYMBOLIC]),
    ],
)
def test_the_command_line_chooses_the_tools(monkeypatch, given, tools):
    asked = []
    monkeypatch.setattr(cli, "_device", lambda options: "cuda")
    monkeypatch.setattr(
        compute_sanitizer, "sanitize", lambda *args: asked.append(args) or not given
    )
    with pytest.raises(SystemExit) as ended:
        cli.main(["sanitize", "--only", "house", "--op", "rope", *given])
    assert ended.value.code == bool(given)
    ((chosen, cases_of, asked_tools, _),) = asked
    assert [solution.name for solution in chosen] == ["house/rope"]
    assert list(asked_tools) == tools
    ((_, cases),) = cases_of
    assert (len(cases) == cli.SANITIZED) == (tools != [SYMBOLIC])


# --- triton-viz itself ----------------------------------------------------------------------------

installed = pytest.mark.skipif(
    not importlib.util.find_spec("triton_viz"), reason="triton-viz is not installed"
)
PLAIN = "import sys; from common.sandbox.alone import symbolic; symbolic.main(*sys.argv[1:])"


def symbolic(program, path, names):
    """The rows of that program over a solution; in a process, since triton-viz changes triton."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    op = "rope" if path.stem == "rope" else "rotate_half"
    ran = subprocess.run(
        [sys.executable, "-c", program, str(path), op, *names],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in ran.stdout.splitlines()]


@installed
@pytest.mark.parametrize(
    ("kernel", "case", "where"),
    [
        ("row_overrun/rope", "sbhd-9x1x1x6-float32", "reads outside of x, line 21 of rope.py"),
        ("one_feature_too_many/rope", "sbhd-9x1x1x6-float32", "writes outside of y, line 29"),
        ("one_head_only/rope", "sbhd-7x2x3x16-float32", "reads outside of x, line 23 of rope.py"),
        ("one_element_too_many/rotate_half", "10x2x4x8-float32", "writes outside of y, line 20"),
        ("freqs_stride_ignored/rope", "sbhd-5x2x3x12-float32-d2=8-strided", "outside of freqs"),
    ],
)
def test_the_corpus_is_found(kernel, case, where):
    path = ROOT / "tests" / "wrong" / f"{kernel}.py"
    ((row),) = symbolic(PLAIN, path, [case])
    assert where in "; ".join(row["found"])


@installed
def test_what_it_cannot_follow_is_said():
    path = ROOT / "tests" / "wrong" / "wild_pointer" / "rotate_half.py"
    (row,) = symbolic(PLAIN, path, ["10x2x4x8-float32"])
    assert (row["found"], row["stopped"]) == ([], "Eval for op left_shift is not implemented")


@installed
def test_house_is_clean():
    rows = symbolic(PLAIN, HOUSE.path, [case.name for case in ROTATE_HALF.cases("smoke")])
    assert not any(row["found"] for row in rows)
    assert sum(not row["stopped"] for row in rows) > 10
    names = ["sbhd-5x2x2x16-float16-strided-paired", "bshd-2x6x3x12-float32-interleaved-strided"]
    rows = symbolic(PLAIN, CONTRIBUTORS / "house" / "rope.py", names)
    assert [row["found"] for row in rows] == [[], []]


# What each mend of `Sanitizer` is for; without it the answer is the other.
VIEW = """
    def kernel(x, y, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        cols = tl.arange(0, BLOCK)
        tl.store(y + row * BLOCK + cols, tl.load(x + row * 8 + cols))

    def rotate_half(x):
        part = x.view(-1, 8)[:, 3:5]
        kernel[(part.shape[0],)](part, torch.empty(part.shape), 2)
        return x
"""
AGAIN = """
    def kernel(x, index, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        tl.load(x + tl.load(index + lanes))

    def rotate_half(x):
        index = torch.arange(4)
        kernel[(1,)](x, index, 4)
        kernel[(1,)](x, index + 1_000_000, 4)
        return x
"""
MOVED = """
    def kernel(x, n, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        for k in range(0, tl.cdiv(n, BLOCK)):
            tl.load(x + lanes, lanes < n - k * BLOCK)
            x += BLOCK

    def rotate_half(x):
        kernel[(1,)](x, x.numel(), 256)
        return x
"""
NESTED = """
    def kernel(x, rows, width: tl.constexpr):
        for row in range(rows):
            for col in range(width):
                tl.load(x + row * width + col)

    def rotate_half(x):
        kernel[(1,)](x, x.numel() // 8, 8)
        return x
"""
HEAD = """
    import torch
    import triton
    import triton.language as tl

    @triton.jit"""


@installed
@pytest.mark.parametrize(
    ("mend", "text", "innocent"),
    [
        ("arg_callback", VIEW, True),
        ("pre_run_callback", AGAIN, False),
        ("register_for_loop_callback", MOVED, True),
        ("register_for_loop_callback", NESTED, True),
    ],
)
def test_a_mend_is_needed(tmp_path, mend, text, innocent):
    path = written(tmp_path, HEAD + text).path
    without = PLAIN.replace("symbolic;", f"symbolic; del symbolic.Sanitizer.{mend};")
    for program, as_it_is in ((PLAIN, innocent), (without, not innocent)):
        (row,) = symbolic(program, path, ["10x2x4x8-float32"])
        assert (not row["found"], row["stopped"]) == (as_it_is, "")
