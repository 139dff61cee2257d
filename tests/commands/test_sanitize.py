"""compute-sanitizer: what it reports decides; a stand-in for it runs here."""

import pytest
import torch

from common import cli, ops
from common.commands import options, sanitize
from common.errors import UserError
from common.paths import CONTRIBUTORS
from common.sandbox import standalone
from common.solutions import Solution

HOUSE = Solution(CONTRIBUTORS / "house" / "rotate_half.py", "rotate_half")
CASES = ["10x2x4x8-float32", "3x2x5x22-float32"]
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors"
OWN = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at _kernel+0x1d0 in rotate_half.py:18
=========     Access to 0x7f6510c00800 is out of bounds
3x2x5x22-float32: called
========= ERROR SUMMARY: 1 error"""
LIBRARY = """\
========= Invalid __global__ read of size 4 bytes
=========     at void at::native::reduce_kernel<512, 1>(T3)+0x1d0
========= ERROR SUMMARY: 1 error"""
HOST = """\
========= Host API memory access error at host access to 0x7f7fcdc01200 of size 400 bytes
=========     Invalid access at 0x7f7fcdc01300 on access by cudaMemcpy source
========= ERROR SUMMARY: 1 error"""
RACE = """\
========= Error: Race reported between Write access at _kernel+0x50 in rope.py:41
=========     and Read access at _kernel+0x90 in rope.py:51 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"""
MANY = CLEAN.replace("0 errors", "1924 errors") + (
    "\n========= ERROR SUMMARY: 924 errors were not printed because the limit was reached"
)


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A compute-sanitizer that prints a given text, and notes its arguments and settings."""

    def make(prints: str, code: int = 0):
        path = tmp_path / "bin" / "compute-sanitizer"
        path.parent.mkdir()
        (tmp_path / "text").write_text(f"{prints}\n")
        path.write_text(
            f'#!/bin/sh\necho "$PYTORCH_NO_CUDA_MEMORY_CACHING $TRITON_INTERPRET $@" >> '
            f"{tmp_path}/calls\ncat {tmp_path}/text\nexit {code}\n"
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        return tmp_path / "calls"

    return make


@pytest.mark.parametrize(
    ("output", "code", "clean", "line"),
    [(CLEAN, 0, True, "nothing found, 0 of 2 cases called"),
     (OWN, 0, False, "1 found, 1 of 2 cases called"),
     (LIBRARY, 0, True, "nothing found, 1 in libraries, 0 of 2 cases called"),
     (HOST, 0, False, "1 found, 0 of 2 cases called"),
     (RACE, 0, False, "1 found, 0 of 2 cases called"),
     (MANY, 0, False, "1924 found, 0 of 2 cases called"),
     (CLEAN, 134, False, "nothing found, 0 of 2 cases called, ended with 134")],
)  # fmt: skip
def test_the_report_on_own_kernels_decides(tool, output, code, clean, line, capsys):
    calls = tool(output, code)
    assert sanitize.sanitize("memcheck", HOUSE, CASES, verbose=False) == clean
    out = capsys.readouterr().out
    assert out.startswith(f"memcheck house/rotate_half: {line}\n")
    assert ("rotate_half.py:18" in out) == (output is OWN)
    called = calls.read_text().strip()
    assert called.startswith("1 0 --tool memcheck ") and "--padding" in called
    names = " ".join(CASES)
    program = f"-m common.sandbox.standalone {HOUSE.path} rotate_half {names}"
    assert called.endswith(program)


def test_an_output_without_a_result_is_one_line(tool, monkeypatch, tmp_path):
    tool("========= Error: No attachable process found\n========= good-bye", 1)
    with pytest.raises(UserError, match="memcheck reported no result: Error: No attachable proc"):
        sanitize.sanitize("memcheck", HOUSE, CASES, verbose=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "bin"))
    with pytest.raises(UserError, match="neither on PATH nor in"):
        sanitize.sanitize("racecheck", HOUSE, CASES, verbose=False)


def test_each_case_is_called_forward_and_backward(tmp_path):
    path, op = tmp_path / "rotate_half.py", ops.load("rotate_half")
    path.write_text("def rotate_half(x):\n    x.register_hook(lambda _: 1 / 0)\n    return x * 1\n")
    case = next(case for case in op.cases("smoke") if case.name == CASES[0])
    with pytest.raises(ZeroDivisionError):
        standalone.call(path, op, case, "cpu")


@pytest.mark.parametrize(("given", "tools"), [([], 2), (["--tool", "racecheck"], 1)])
def test_the_command_runs_the_tools_over_a_sample(monkeypatch, given, tools):
    calls = []
    monkeypatch.setattr(options, "device", lambda options: "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: True)
    monkeypatch.setattr(sanitize, "sanitize", lambda *args: calls.append(args) or not given)
    with pytest.raises(SystemExit) as ended:
        cli.main(["sanitize", "--only", "house/rope", "--op", "rope", *given])
    assert ended.value.code == bool(given)
    assert [tool for tool, *_ in calls] == [*sanitize.TOOLS][-tools:]
    assert {(solution.name, len(names)) for _, solution, names, _ in calls} == {
        ("house/rope", sanitize.SAMPLE)
    }
