"""NVIDIA's compute-sanitizer and triton-viz: what they say decides; stand-ins for them run here."""

from __future__ import annotations

import importlib.util
import subprocess
import textwrap

import pytest
import torch

from common import cli
from common.commands import options, sanitize
from common.errors import UserError
from common.sandbox.standalone import smoke
from common.tools import sanitizers
from common.tools.sanitizers import read
from tests.support.processes import ends
from tests.support.sanitizing import (
    CASES,
    HOUSE,
    PLAIN,
    RIGHT,
    ROTATE_HALF,
    SMOKE,
    sanitized,
    symbolic,
    written,
)
from tests.support.waiting import wait_until

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
    """A compute-sanitizer that prints a given text, and notes how it was called."""

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
    assert all(f"{each} house/rotate_half: {line}" in out for each in sanitizers.TOOLS)
    assert ("rotate_half.py:18" in out) == (says is OURS)
    lines = calls.read_text().splitlines()
    assert [each.split()[1] for each in lines] == list(sanitizers.TOOLS)
    names = " ".join(case.name for case in CASES)
    ends = f"-m common.sandbox.standalone.smoke {HOUSE.path} rotate_half {names}"
    assert all(each.endswith(ends) for each in lines)
    assert [("--padding" in each) for each in lines] == [True, False, False]
    assert (tmp_path / "settings").read_text().splitlines() == ["1 0"] * 3


def test_one_tool_is_enough(tool):
    tool(CLEAN, then='[ "$2" = memcheck ] && exit 134')
    assert sanitized(tools=["racecheck", "initcheck"])
    assert not sanitized()


@pytest.mark.slow
def test_what_does_not_end_is_ended_with_all_that_it_started(tool, tmp_path, monkeypatch, capsys):
    child = tmp_path / "child"
    tool(CLEAN, then=f"sleep 1000 & echo $! > {child}.new; mv {child}.new {child}\nwait")

    class Late(subprocess.Popen):
        def communicate(self, timeout=None):
            """Have the time run out once the child is there."""
            if timeout:
                assert wait_until(child.exists)
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().communicate()

    monkeypatch.setattr(sanitizers.subprocess, "Popen", Late)
    assert not sanitized(tools=["memcheck"])
    assert f"no end within {sanitizers.SECONDS} s" in capsys.readouterr().out
    assert ends(int(child.read_text())), "what the tool started goes on"


def test_a_tool_that_cannot_start_is_a_fault(tool):
    tool("========= Error: No attachable process found\n========= good-bye", 1)
    with pytest.raises(
        UserError, match="memcheck reported no result: Error: No attachable process"
    ):
        sanitized()


def test_the_tool_is_looked_for_where_cuda_is(tool, monkeypatch, tmp_path):
    tool(CLEAN)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert sanitizers.executable() == str(tmp_path / "bin" / "compute-sanitizer")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "bin"))
    with pytest.raises(UserError, match="neither on PATH nor in"):
        sanitized()


def first(statement):
    """The solution, which does this first; the process of a case imports it anew."""
    return RIGHT.replace("x1, x2 =", f"{statement}\n        x1, x2 =")


def test_each_case_is_called_with_backward_or_says_why_not(tmp_path):
    path = written(tmp_path, RIGHT).path
    said = {case.interleaved: smoke.call(path, ROTATE_HALF, case, "cpu") for case in CASES}
    assert said == {False: "called", True: "does not take interleaved"}
    hook = "x.register_hook(lambda _: 1 / 0)"
    path = written(
        tmp_path, first(f"{hook} if x.requires_grad else None"), "bob/rotate_half.py"
    ).path
    said = smoke.call(path, ROTATE_HALF, CASES[0], "cpu")
    assert said.startswith("ZeroDivisionError: division by zero, line ")


# --- triton-viz -----------------------------------------------------------------------------------


# The modules of triton-viz that are used; each kernel gets a report at once.
REFERENCE = {
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


@pytest.fixture
def reference(tmp_path, monkeypatch):
    for name, text in REFERENCE.items():
        path = tmp_path / "site" / "triton_viz" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


# for the case without an end alone
LITTLE_TIME = """
findings, plenty = symbolic.findings, symbolic.SECONDS

def timed(path, op, case):
    symbolic.SECONDS = 1 if case.dtype == "float32" else plenty
    return findings(path, op, case)

symbolic.findings = timed
"""


REPORTED = "import triton; triton.jit(lambda: None)"
WHERE = "writes outside of y, line 9 of rotate_half.py: x"
FOUND = {REPORTED: WHERE, f"{REPORTED}; raise ValueError('no')": f"{WHERE}; cannot follow: Val"}
NOT_FOLLOWED = {
    "print('{}')": "nothing found",
    "raise NotImplementedError('blocks')": "cannot follow: blocks",
    "import os; os._exit(0)": "cannot follow: its process ended with 0",
    "import os; os.abort()": "cannot follow: its process ended with -6",
}


@pytest.mark.slow
@pytest.mark.parametrize("said", [FOUND, NOT_FOLLOWED], ids=["found", "not followed"])
def test_what_is_found_decides_and_what_cannot_be_followed_does_not(
    reference, tmp_path, said, capsys
):
    """Each case has a statement of its own."""
    alone = {(case.shape, case.dtype): case for case in SMOKE if not case.interleaved}
    does = dict(zip(alone, said, strict=False))
    solution = written(tmp_path, first(f"exec({does}[tuple(x.shape), str(x.dtype)[6:]])"))
    cases = [alone[each] for each in does]
    assert sanitized(solution, [sanitizers.SYMBOLIC], cases) == (said is NOT_FOLLOWED)
    lines = capsys.readouterr().out.splitlines()
    for line, case, words in zip(lines, cases, said.values(), strict=True):
        assert line.startswith(f"triton-viz alice/rotate_half {case.name}: {words}")


@pytest.mark.slow
def test_a_case_without_an_end_costs_itself_alone(reference, tmp_path):
    text = first("while x.dtype == torch.float32: pass")
    path = written(tmp_path, text).path
    names = [CASES[0].name, "10x2x4x8-float16-reversed"]
    program = PLAIN.replace(" symbolic.main", LITTLE_TIME + "symbolic.main")
    stopped = [row["stopped"] for row in symbolic(program, path, names)]
    assert stopped == ["no end within 1 s", ""]


@pytest.mark.slow
def test_what_does_not_run_here_is_a_fault(reference, tmp_path):
    (tmp_path / "site" / "triton_viz" / "__init__.py").write_text("import nowhere")
    with pytest.raises(UserError, match=r"does not run here: ModuleNotFoundError: .*nowhere"):
        sanitized(written(tmp_path, RIGHT), [sanitizers.SYMBOLIC])


@pytest.mark.slow
def test_no_triton_viz_is_a_fault(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="triton-viz is not installed: nox -s sanitize -- --tool"):
        sanitized(tools=[sanitizers.SYMBOLIC])


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "tools"),
    [
        ([], list(sanitizers.TOOLS)),
        (["--tool", "racecheck"], ["racecheck"]),
        (["--tool", sanitizers.SYMBOLIC], [sanitizers.SYMBOLIC]),
    ],
)
def test_the_command_line_chooses_the_tools(monkeypatch, given, tools):
    asked = []
    monkeypatch.setattr(options, "device", lambda options: "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    monkeypatch.setattr(sanitize, "sanitize", lambda *args: asked.append(args) or not given)
    with pytest.raises(SystemExit) as ended:
        cli.main(["sanitize", "--only", "house", "--op", "rope", *given])
    assert ended.value.code == bool(given)
    ((chosen, cases_of, asked_tools, _),) = asked
    assert [solution.name for solution in chosen] == ["house/rope"]
    assert list(asked_tools) == tools
    ((_, cases),) = cases_of
    assert (len(cases) == sanitize.SAMPLE) == (tools != [sanitizers.SYMBOLIC])
