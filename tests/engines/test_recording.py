"""bench goes on with the run that it should, and otherwise starts one."""

import functools
import shutil

import pytest
from msgspec.structs import replace

from common import paths
from common.engines import benching
from common.engines.engine import CaseResult, Engine, Job
from common.grading import sweep
from common.grading.sweep import Sweep
from common.measure import machine
from common.measure.machine import DeviceInfo
from common.records import runs
from common.records.lines import Selection
from common.solutions import Solution, discover
from tests.support.records import ROW, RUN, written
from tests.support.study import RIGHT

ALICE = Solution(paths.CONTRIBUTORS / "alice" / "rope.py", "rope")
DEVICE = DeviceInfo(device="cpu", name="a laptop", node="", uuid="cpu", versions={"torch": "2"})
LATER = "20261122T082930Z-r2.jsonl"


@pytest.fixture
def resumed(tmp_path, monkeypatch):
    """Return a function that records beside an earlier run; it returns whether that goes on."""

    def resumed(rows=(ROW,), end=False, later=False, digests=("s1", "h1"), device=DEVICE, **chosen):
        monkeypatch.setattr(paths, "RESULTS", tmp_path)
        monkeypatch.setattr(benching, "digests_of", lambda _: {ALICE: digests} if digests else {})
        written(tmp_path / "a-laptop", *rows, end=end)
        if later:
            written(tmp_path / "a-laptop", run=replace(RUN, run="r2"), name=LATER)
        absent = chosen.pop("absent", RUN.absent)
        selection = Selection(op="rope", **chosen)
        with benching.recording(device, [], selection, absent) as found:
            return found.run.run == RUN.run

    return resumed


@pytest.mark.parametrize("rows", [(ROW,), ()])
def test_an_interrupted_run_is_gone_on_with(rows, resumed):
    assert resumed(rows)


@pytest.mark.parametrize(
    "changed",
    [
        {"end": True}, {"later": True}, {"only": "alice"}, {"absent": {"fla": "too old"}},
        {"digests": ("s2", "h1")}, {"digests": ("s1", "h2")}, {"digests": None},
        {"device": replace(DEVICE, versions={"torch": "3"})},
        {"device": replace(DEVICE, name="A laptop")},
    ],
    ids=str,
)  # fmt: skip
def test_otherwise_a_new_one_starts(changed, resumed):
    assert not resumed(**changed)


CASES = 3


@pytest.fixture
def run(tmp_path, monkeypatch, fork_server):
    """Return a function that benches a source: its results, other events, the device's records."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sweep, "Sweep", functools.partial(Sweep, server=fork_server))
    source = tmp_path / "contributors" / "alice" / "rotate_half.py"
    source.parent.mkdir(parents=True)

    def run(text):
        source.write_text(text)
        found, others = [], []
        solutions = tuple(discover(tmp_path / "contributors"))
        engine = Engine(Job(command="bench", device="cpu", solutions=solutions, tier="board"))
        for event in benching.bench(engine, Selection(), {}):
            (found if isinstance(event, CaseResult) else others).append(event)
        assert others[0] == sum(len(result.rows) for result in found)
        return found, others, runs.read(paths.RESULTS / "cpu")

    return run


@pytest.mark.slow
def test_without_a_gpu_a_second_run_keeps_what_did_not_change(run):
    run(RIGHT)
    second, others, results = run(RIGHT)
    assert not second and len(others[-1].kept) == CASES
    assert {row.run for row in results.latest()} == {results.runs[-1].run}
    assert len(results.latest()) == 2 * CASES
    assert {*results.runs[-1].cases["rotate_half"]} == {row.case for row in results.rows}
    changed, _, _ = run(RIGHT + "changed = True\n")
    assert len(changed) == CASES


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "done"), [(1 + 3, 1), (-1, CASES)])
def test_a_killed_run_is_continued(run, lines, done):
    """Amid a case or after its last row: each row stands once in the results, and none is lost."""
    run(RIGHT)
    (path,) = runs.files(paths.RESULTS / "cpu")
    whole = runs.read(path.parent)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    found, others, results = run(RIGHT)
    assert len(others[-1].kept) == done
    again = {result.case for result in found}
    assert len(found) == CASES - done and again <= {whole.rows[2].case, whole.rows[4].case}
    latest = results.latest()
    assert sorted(row.key for row in latest) == sorted(row.key for row in whole.latest())
    new = {row.key: row for result in found for row in result.rows}
    assert all(row == new[row.key] for row in latest if row.case in again)
    assert {row.run for row in latest} == results.finished == {whole.runs[0].run}


# --- what counts as the harness -------------------------------------------------------------------


GRADES = (
    "grading/new.py measure/new.py ops/rope.py ops/new.py sandbox/new.py engines/new.py"
    " sandbox/interpreter/new.py new.py grading/grade.py sandbox/clock.py"
)
SHOWS = (
    "board/new.py board/page/new.py commands/new.py records/new.py"
    " peers/eager/rope.py ops/mistakes/rope.py"
)


def test_a_row_rests_on_what_grades_and_times(tmp_path, monkeypatch):
    common = tmp_path / "common"
    shutil.copytree(paths.COMMON, common, ignore=lambda *_: ["__pycache__"])
    monkeypatch.setattr(machine, "COMMON", common)
    before, changes = machine.harness_digest(), set()
    for file in f"{GRADES} {SHOWS}".split():
        path = common / file
        old = path.read_bytes() if path.exists() else None
        path.write_bytes((old or b"") + b"more = True\n")
        changes |= {file} if machine.harness_digest() != before else set()
        path.unlink() if old is None else path.write_bytes(old)
    assert changes == set(GRADES.split())
