"""`check --case NAME --script FILE`: a case as a script of torch and Triton alone."""

import sys

import pytest

from common import ops
from common.commands import script
from common.commands.answers import CaseAnswer
from common.ops._names import named
from common.solutions import discover
from tests.support.processes import run
from tests.support.study import WRONG, environment

HOUSE = {each.op: each for each in discover() if each.name.startswith("house/")}
CASES = {
    "rope": ["thd-4x15x3x16-bfloat16-d2=8-paired", "sbhd-5x2x3x12-float32-d2=8-expanded-paired"],
    "rope_qk": ["bshd-3x2x4x2x16-float32"],
    "rotate_half": ["10x2x4x8-float32"],
    "masked_linear": ["20x40x24-float32-all-infinite", "34x1024x32-bfloat16-span"],
    "masked_ffn": ["0x16x24-float32-span"],
}
PAIRS = [(op, case) for op, cases in CASES.items() for case in cases]


def ran(file, *arguments):
    """Run a script where nothing of this repository can be imported."""
    return run(sys.executable, "-I", file, *arguments, env=environment(), cwd="/")


@pytest.mark.slow
@pytest.mark.parametrize(("op", "name"), PAIRS)
def test_a_script_passes_what_is_right_in_150_lines_at_most(op, name, tmp_path):
    case = named(ops.load(op), name)
    text = script.written(CaseAnswer(ops.load(op), case, {}), HOUSE[op])
    assert len(text.splitlines()) < 150 and "common" not in text, "or a second reason has no room"
    (tmp_path / "script.py").write_text(text)
    found = ran(tmp_path / "script.py", HOUSE[op].path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(("output: 0 of ", "output_q: 0 of "))
    assert f"{HOUSE[op].path.name} is not here: python " in ran(tmp_path / "script.py").stderr


@pytest.mark.slow
def test_a_script_of_a_failing_case_shows_the_fault(study, by_hand, repository, tmp_path):
    by_hand("alice", WRONG)
    file = tmp_path / "script.py"
    checked = study("check", "alice", "--case", "10x2x4x8-float32", "--script", file)
    assert checked.code == 1 and f"wrote {file}" in checked.out
    assert "forward: INCORRECT_NUMERICAL output wrong: " in file.read_text()
    found = ran(file, repository / "contributors" / "alice" / "rotate_half.py")
    assert found.returncode == 1
    assert "output: 320 of 640 wrong" in found.stdout and "at [0, 0, 0, 0] exp" in found.stdout
