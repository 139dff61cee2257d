"""The kernel and its adapter, as docs/public-kernels.md prints them, are a right solution."""

import re
from collections import defaultdict
from textwrap import dedent

import pytest

from common import ops
from common.grading.sweep import Sweep
from common.paths import ROOT
from common.solutions import Solution
from tests.support.workers import CHOOSE, chosen

pytestmark = pytest.mark.slow

FILE = re.compile(r"`(\w+\.py)`, .*:\n\n((?: {4}.*\n|\n)+)")


@pytest.fixture
def example(tmp_path):
    """Return the adapter's file, beside the kernel's."""
    page = (ROOT / "docs" / "public-kernels.md").read_text()
    for name, code in FILE.findall(page):
        (tmp_path / name).write_text(dedent(code))
    return tmp_path / "rope.py"


def test_the_example_answers_what_it_says_and_is_differentiated_twice(
    example, fork_server, monkeypatch
):
    monkeypatch.setattr(CHOOSE, chosen(keeps_graph=True))
    solution, op = Solution(example, "rope"), ops.load("rope")
    verdicts = defaultdict(set)
    with Sweep("cpu", server=fork_server) as sweep:
        for graded in sweep.grade(op, [*op.cases("smoke")][::3], [solution]):
            case = graded.case
            taken = case.angles == "paired" and case.d2 == case.d and not case.lengths
            taken = taken and not (case.interleaved or case.starts or case.cp_size > 1)
            for verdict in graded.verdicts.values():
                verdicts[taken, case.tensor_format].add(verdict.verdict)
                found = {note.kind for note in verdict.notes if note.found}
                assert "OTHER_SECOND_DERIVATIVES" not in found
    assert verdicts[True, "sbhd"] == verdicts[True, "bshd"] == {"PASSED"}
    assert verdicts[False, "thd"] == {"UNSUPPORTED"}
