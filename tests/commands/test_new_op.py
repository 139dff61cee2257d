"""`study new`; a new op is one file: docs/ops.md, and what a wrong file costs."""

import re
import shutil
from textwrap import dedent

import pytest
import torch
from torch.nn.functional import silu

from common import ops
from common.commands.new import from_reference
from common.paths import ROOT
from tests.support.study import RIGHT, one_line
from tests.support.waiting import LONGEST

PAGE = (ROOT / "docs" / "ops.md").read_text()
CODE = re.compile(r"`(\w+)\.py`:\n\n((?: {4}.*\n|\n)+)")
FILES = {op: dedent(code).strip() + "\n" for op, code in CODE.findall(PAGE)}


@pytest.fixture
def repository(repository, tmp_path):
    """A copy for one test: what it adds to it, no other test finds."""
    copied = shutil.copytree(repository.parent, tmp_path / "study")
    return copied / repository.name


@pytest.fixture
def op(repository):
    """A function that writes an op's file."""
    return lambda name, text: (repository / "common" / "ops" / f"{name}.py").write_text(text)


# --- what new writes ------------------------------------------------------------------------------


@pytest.fixture
def newcomer(repository):
    """The folder that the tests fill."""
    return repository / "contributors" / "newcomer"


@pytest.mark.slow
def test_what_new_writes_passes_check(study, newcomer):
    ran = study("new", "newcomer", "rotate_half", hidden="torch triton numpy rich")
    assert ran.code == 0, ran.err
    assert {f.name for f in newcomer.iterdir()} == {"README.md", "rotate_half.py"}
    assert "newcomer" in (newcomer / "README.md").read_text()
    ran = study("check", "newcomer")
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.endswith("Next: nox -s bench leaderboard -- --only newcomer\n")


def test_new_overwrites_nothing(study, newcomer):
    study("new", "newcomer", "rope")
    for name in ("rope.py", "README.md"):
        (newcomer / name).write_text("mine")
    assert "newcomer/rope.py" in one_line(study("new", "newcomer", "rope"))
    ran = study("new", "newcomer", "rotate_half", hidden="torch triton numpy rich")
    assert ran.out == (
        "wrote contributors/newcomer/rotate_half.py;"
        " next: nox -s check -- newcomer --op rotate_half\n"
    )
    assert (newcomer / "rope.py").read_text() == (newcomer / "README.md").read_text() == "mine"


# --- one file -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_new_op_has_a_naive_solution_that_passes_and_a_board(study, repository, op, name):
    op(name, FILES[name])
    ran = study("new", "alice", name, hidden="torch triton numpy rich")
    assert ran.code == 0, ran.err
    ran = study("check", "alice", timeout=LONGEST)
    assert ran.code == 0, ran.out + ran.err
    assert re.search(rf"alice/{name}: PASSED in (\d+) of \1 cases", ran.out)
    ran = study("bench", "--op", name, "--device", "cpu", timeout=LONGEST)
    assert ran.code == 0, ran.err
    board = study("leaderboard", "--op", name)
    assert board.code == 0, board.err
    assert all(f"{each}/{name}" in board.out for each in ("alice", "(eager", "(torch_compile"))
    assert f"{name}: standard, modelled for" in board.out
    assert not board.err


def test_a_function_of_torch_that_is_named_like_the_op_is_called(tmp_path, monkeypatch):
    reference = "def reference(x):\n    return silu(x).exp()\n"
    (tmp_path / "silu.py").write_text(f"from torch.nn.functional import silu\n\n{reference}")
    monkeypatch.setattr("common.commands.reference.OPS", tmp_path)
    exec(from_reference("silu"), defined := {})
    assert torch.equal(defined["silu"](torch.ones(3)), silu(torch.ones(3)).exp())


def test_a_reference_brings_the_code_of_other_files_along():
    exec(text := from_reference("rope"), defined := {})
    t, freqs = torch.rand(3, 1, 2, 4), torch.rand(3, 1, 1, 4)
    assert torch.equal(defined["rope"](t, freqs), ops.load("rope").reference(t, freqs))
    assert "common" not in text


# --- a file that is not whole ---------------------------------------------------------------------

LINE = "study: common/ops/glu.py: OP.reference takes ['x', 'y'], the interface ['x', 'gate']"
WRONG = FILES["glu"].replace("reference(x: torch.Tensor, gate", "reference(x: torch.Tensor, y")
UNREAD = FILES["glu"].replace("OP = shaped(", "OP = shaped((")
NO_PARSE = "study: common/ops/glu.py, line 37: '(' was never closed"


def check_line(ran, line):
    """One line, and the command goes on with the other ops."""
    assert [each for each in ran.err.splitlines() if "glu" in each] == [
        f"{line}: the other ops go on"
    ], ran.err


@pytest.mark.slow
def test_a_wrong_file_costs_its_op_a_line_and_the_others_nothing(study, op, repository, by_hand):
    op("glu", WRONG)
    by_hand("alice", RIGHT)
    (repository / "contributors" / "alice" / "glu.py").write_text("def glu(x, gate): return x")
    ran = study("check", "alice", timeout=LONGEST)
    assert ran.code == 0, ran.out + ran.err
    check_line(ran, LINE)
    assert LINE in one_line(study("check", "alice", "--op", "glu", timeout=LONGEST))


@pytest.mark.slow
def test_a_file_that_does_not_parse_costs_a_line_where_files_are_read_alone(
    study, op, recorded, by_hand
):
    op("glu", UNREAD)
    for command in ("list", "leaderboard", "new bob rotate_half"):
        ran = study(*command.split(), hidden="torch triton")
        assert ran.code == 0, ran.err
        check_line(ran, NO_PARSE)
    ran = study("new", "bob", "glu")
    assert one_line(ran) == NO_PARSE
