"""A fork server without torch.compile's modules, which imports them once a solution needs them."""

from __future__ import annotations

import pytest

from common import ops
from common.grading.fork_server import ForkServer
from common.grading.sweep import Sweep
from common.solutions import Solution

HALF = ops.load("rotate_half")
CASES = [case for case in HALF.cases("smoke") if not case.span and not case.interleaved][:6]
TURNS = """
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""
PLAIN = f"import torch\n\ndef rotate_half(x):{TURNS}"
SAYS = """
import sys

def rotate_half(x):
    raise NotImplementedError(str("torch._dynamo" in sys.modules))
"""
AT_IMPORT = f"import torch\n\n@torch.compile(backend='aot_eager')\ndef rotate_half(x):{TURNS}"
IN_A_CALL = PLAIN.replace("(x):\n", "(x):\n    torch.compiler.reset()\n")
IN_A_LATER_CALL = IN_A_CALL.replace("    torch.compiler", "    if x.dim() == 2: torch.compiler")


@pytest.fixture
def light():
    server = ForkServer("cpu", light=True)
    yield server
    server.close()


@pytest.fixture
def verdicts(tmp_path, light):
    """Return the verdicts, or the reasons, of a solution."""

    def graded(source, field="verdict", cases=CASES):
        path = tmp_path / "rotate_half.py"
        path.write_text(source)
        with Sweep("cpu", server=light) as sweep:
            found = list(sweep.grade(HALF, cases, [Solution(path, "rotate_half")]))
        assert len(found) == len(cases)
        return {getattr(verdict, field) for each in found for verdict in each.verdicts.values()}

    return graded


def test_a_solution_that_needs_no_compiler_does_without(verdicts, light):
    assert verdicts(PLAIN) == {"PASSED"}
    assert light.light
    assert verdicts(SAYS, "reason", CASES[:1]) == {"False"}


@pytest.mark.parametrize("source", [AT_IMPORT, IN_A_CALL, IN_A_LATER_CALL])
@pytest.mark.slow
def test_one_that_needs_it_is_asked_again_where_it_is(verdicts, light, source):
    assert verdicts(source) == {"PASSED"}
    assert not light.light
    assert verdicts(SAYS, "reason", CASES[:1]) == {"True"}


def test_any_other_server_has_it_from_the_start(tmp_path, fork_server):
    assert not fork_server.light
    path = tmp_path / "rotate_half.py"
    path.write_text(SAYS)
    with Sweep("cpu", server=fork_server) as sweep:
        (found,) = sweep.grade(HALF, CASES[:1], [Solution(path, "rotate_half")])
    assert found.verdicts["forward"].reason == "True"
