"""Every attack of tests/corpus/cheats is caught, or harmless and graded as what it is."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from pathlib import Path

import pytest

from common import ops, paths
from common.engines.benching import bench
from common.engines.engine import Engine, Job
from common.errors import UserError
from common.grading.sweep import Sweep
from common.paths import ROOT
from common.records import runs
from common.records.lines import Selection
from common.sandbox.landlock import landlock_version
from common.solutions import Solution
from tests.support import corpora as corpus
from tests.support.corpora import (
    BESIDE_CHEATS,
    CHEATS,
    HONEST,
    TIMED,
    expected,
    promised,
    verdicts,
)  # fmt: skip

pytestmark = pytest.mark.slow

(WRITES,) = (cheat for cheat in CHEATS if cheat.handle == "writes_to_the_record")
MEANS = set(
    "bound_method bound_twice callable_instance compiled custom_operator decorated"
    " dispatched_by_type function_apply module_instance script_module torchscript triton_operator"
    " captured_graph look_back_scan side_stream thread_pool_of_multiprocessing"
    " tickets_by_atomics".split()
)
"""Honest solutions, among them one for each form of a callable that CONTRIBUTING.md accepts."""
TO_TIME = [*BESIDE_CHEATS, *(each for each in HONEST if each.handle in MEANS)]


@pytest.fixture(scope="module")
def counts():
    with Sweep("cpu", deadline=corpus.DEADLINE) as sweep:
        return verdicts(sweep, CHEATS, BESIDE_CHEATS)


@pytest.mark.parametrize("solution", CHEATS, ids=lambda solution: solution.handle)
def test_is_caught(solution, counts):
    assert not corpus.wrongly_judged(solution, counts)


@pytest.mark.parametrize("solution", BESIDE_CHEATS, ids=lambda solution: solution.name)
def test_bystander_is_untouched(solution, counts):
    assert not corpus.harmed(solution, counts)


@pytest.fixture(scope="module")
def timed(fork_server):
    """Without a GPU by the host's clock alone; test_wrong_on_gpu.py has the other."""
    several = [*TIMED, *TO_TIME]
    return corpus.timed("cpu", several, server=fork_server, time_scale=corpus.SHORT)


@pytest.mark.parametrize("solution", TIMED, ids=lambda solution: solution.handle)
def test_is_caught_when_timed(solution, timed):
    assert timed[solution] == promised(solution, "Timed")


@pytest.mark.parametrize("solution", TO_TIME, ids=lambda solution: solution.name)
def test_an_honest_one_is_timed(solution, timed):
    assert timed[solution] == "PASSED"


def test_corpus_is_large_enough():
    caught = corpus.CAUGHT & {*CHEATS}
    assert len(CHEATS) >= 20 and len(caught) >= 20 and len(TO_TIME) > len(MEANS)
    assert {"TAMPERED", "OUT_OF_BOUNDS"} <= {v for c in CHEATS for v in expected(c).values()}


def test_the_docs_show_it(counts, pytestconfig):
    """`nox -s harness -- --write-docs` writes both."""
    table = corpus.table(CHEATS, counts)
    assert corpus.in_the_docs("cheats", table, pytestconfig.getoption("write_docs"))


# --- the records are the harness's ----------------------------------------------------------------


def beside_results(root: Path) -> tuple[Solution, Path]:
    """The cheat, and a file of results that it finds."""
    shutil.copytree(WRITES.path.parent, root / "contributors" / WRITES.handle)
    (root / "results" / "cpu").mkdir(parents=True)
    path = root / "contributors" / WRITES.handle / WRITES.path.name
    return Solution(path, WRITES.op), root / "results" / "cpu" / "a-run.jsonl"


def can_confine() -> bool:
    """Landlock's version 3, of Linux 6.2, knows of all writes; the folder of temporary files is
    open to all."""
    temporary = ROOT.is_relative_to(Path(tempfile.gettempdir()).resolve())
    return not temporary and landlock_version(ctypes.CDLL(None)) >= 3


@pytest.mark.skipif(not can_confine(), reason="no process can be confined here")
@pytest.mark.parametrize(("change", "held"), [("", True), ("unconfined", False)])
def test_a_confined_worker_writes_nowhere_in_the_repository(change, held, monkeypatch):
    monkeypatch.setenv("STUDY_TEST_SERVER", change)
    with tempfile.TemporaryDirectory(dir=ROOT) as folder, Sweep("cpu") as sweep:
        cheat, results = beside_results(Path(folder))
        results.write_bytes(b"a row\n")
        op = ops.load(cheat.op)
        (graded,) = sweep.grade(op, [next(op.cases("smoke"))], [cheat])
        assert {verdict.verdict for verdict in graded.verdicts.values()} == {"PASSED"}
        assert (results.read_bytes() == b"a row\n") == held


def here(solution):
    return Engine(Job(command="bench", device="cpu", solutions=(solution,), tier="board"))


def test_a_run_whose_record_an_unconfined_worker_writes_to_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDY_TEST_SERVER", "unconfined")
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    cheat, results = beside_results(tmp_path)
    with pytest.raises(UserError, match="another process changed the file"):
        list(bench(here(cheat), Selection(), {}))
    (results,) = runs.files(results.parent)
    assert '"kind":"end"' not in results.read_text()
