"""bench goes on with the run that it should, and otherwise starts one."""

import contextlib
import functools
import shutil

import pytest
from msgspec.structs import replace

from common import paths
from common.engines import benching
from common.engines.benching import Planned, Recorded, Taken
from common.engines.engine import Job, LocalEngine
from common.errors import UserError
from common.grading import sweep
from common.grading.sweep import Sweep
from common.measure import machine
from common.records import runs, writer
from common.records.lines import Counted, Selection
from common.records.runs import Results
from common.solutions import Solution, discover, imported
from tests.support.records import ROW, RUN, row

ALICE = Solution(paths.CONTRIBUTORS / "alice" / "rope.py", "rope")
DIGESTS = {ALICE: ("s1", "h1")}
FRESH = replace(RUN, run="r2")


def unfinished(fresh=FRESH, rows=(ROW,), finished=(), digests=DIGESTS, runs=(RUN,)):
    earlier = Results(None, runs=list(runs), rows=list(rows), finished=set(finished))
    return benching._unfinished(earlier, fresh, digests)


def test_an_interrupted_run_is_gone_on_with():
    assert unfinished() == RUN
    assert unfinished(rows=()) == RUN
    older = row(run="r0", sources="old")
    assert unfinished(rows=(older, ROW)) == RUN


@pytest.mark.parametrize(
    "changed",
    [
        {"finished": ["r1"]},
        {"runs": []},
        {"runs": [RUN, replace(RUN, run="r3")], "finished": ["r3"]},
        {"digests": {ALICE: ("s2", "h1")}},
        {"digests": {ALICE: ("s1", "h2")}},
        {"digests": {}},
        {"fresh": replace(FRESH, versions={"torch": "3"})},
        {"fresh": replace(FRESH, absent={})},
        {"fresh": replace(FRESH, selection=Selection(only="alice"))},
        {"fresh": replace(FRESH, selection=Selection(op="rope", tier="plot"))},
        {"fresh": replace(FRESH, device_name="another laptop")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_otherwise_a_new_one_starts(changed):
    assert unfinished(**changed) is None


PLAIN = '''"""plain torch"""
import torch

def rotate_half(x, *, interleaved=False):
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)
'''
CASES = 3


@pytest.fixture
def run(tmp_path, monkeypatch, fork_server):
    """Bench one plain solution into a folder of its own; with `kill`, interrupted after so many
    rows. Returns the events of this time, and the device's records."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sweep, "Sweep", functools.partial(Sweep, server=fork_server))
    source = tmp_path / "contributors" / "alice" / "rotate_half.py"
    source.parent.mkdir(parents=True)

    def run(text, kill=None):
        source.write_text(text)
        chosen, events = discover(tmp_path / "contributors"), []
        solutions = tuple(chosen)
        engine = LocalEngine(Job(command="bench", device="cpu", solutions=solutions, tier="board"))
        with contextlib.closing(benching.bench(engine, Selection(), {})) as ran:
            for event in ran:
                if isinstance(event, Planned):
                    assert event.rows == 2 * CASES
                    continue
                events.append(event)
                if len(events) == kill:
                    break
        return events, runs.read(paths.RESULTS / "cpu")

    return run


def taken(events):
    """Whether an earlier run took it, of each row."""
    return [event.kept for event in events if isinstance(event, Taken)]


@pytest.mark.slow
def test_an_interrupted_bench_is_gone_on_with(run, capsys):
    """A kill cuts off the last line too, so that its case has one direction alone."""
    seen, results = run(PLAIN, kill=4)
    assert results.rows == [event.row for event in seen]
    assert not results.finished
    (path,) = runs.files(results.path)
    path.write_text(path.read_text()[:-9])

    again, results = run(PLAIN)
    assert "dropped" in capsys.readouterr().err
    assert again[-1] == Recorded(path, kept=1)
    kept = [Taken(event.row, kept=True) for event in seen[:2]]
    assert again[:2] == kept, "reported, and not measured"
    new = [event for event in again[2:-1] if not isinstance(event, Counted)]
    assert all(isinstance(event, Taken) and not event.kept for event in new)
    assert not {e.row.case for e in new} & {e.row.case for e in seen[:2]}
    assert len(results.runs) == len(results.finished) == 1
    assert len(results.latest()) == 2 * CASES
    assert {r.verdict for r in results.rows} == {"PASSED"}
    assert not list(results.path.glob("*samples*")), "nothing was timed"

    seen, results = run(PLAIN + "changed = True\n", kill=1)
    assert len(results.runs) == len(runs.files(results.path)) == 2
    assert seen[0].row.run == results.runs[1].run
    assert seen[0].row.sources != results.rows[0].sources


@pytest.mark.slow
def test_without_a_gpu_a_second_run_keeps_what_did_not_change(run):
    first, _ = run(PLAIN)
    second, results = run(PLAIN)
    assert taken(second) == [True] * 2 * CASES
    assert second[-1].kept == CASES and not second[-1].resumed
    assert {row.run for row in results.latest()} == {results.runs[-1].run}
    assert len(results.latest()) == 2 * CASES

    changed, _ = run(PLAIN + "changed = True\n")
    assert taken(changed) == [False] * 2 * CASES
    assert [type(event) for event in first] == [type(event) for event in changed]


@pytest.mark.slow
def test_a_failure_is_graded_again(run):
    failing = PLAIN + "def rotate_half(x, *, interleaved=False):\n    return x\n"
    run(failing)
    again, _ = run(failing)
    assert taken(again) == [False] * 2 * CASES


def test_a_second_bench_on_the_device_is_refused(run):
    with (
        writer.locked(paths.RESULTS / "cpu"),
        pytest.raises(UserError, match="another run is writing"),
    ):
        run(PLAIN)


# --- what counts as the harness -------------------------------------------------------------------


@pytest.fixture
def common(tmp_path, monkeypatch):
    """A copy of the package, whose digest is taken."""
    shutil.copytree(paths.COMMON, tmp_path / "common", ignore=lambda *_: ["__pycache__"])
    monkeypatch.setattr(machine, "COMMON", tmp_path / "common")
    return tmp_path / "common"


@pytest.mark.parametrize(
    "file",
    ["grading/new.py", "measure/new.py", "ops/__init__.py", "ops/_draw.py", "sandbox/new.py",
     "engines/new.py", "sandbox/interpreter/new.py", "new.py", "grading/grade.py",
     "sandbox/clock.py"],
)  # fmt: skip
def test_what_grades_and_times_is_the_harness(common, file):
    before = machine.harness_digest("rotate_half")
    with (common / file).open("a") as opened:
        opened.write("more = True\n")
    assert machine.harness_digest("rotate_half") != before


@pytest.mark.parametrize(
    "file",
    ["board/new.py", "board/plots/new.py", "commands/new.py", "commands/another.py",
     "records/new.py", "tools/new.py", "sandbox/standalone.py", "cli.py",
     "peers/eager/rope.py"],
)  # fmt: skip
def test_what_shows_and_tunes_is_not(common, file):
    before = machine.harness_digest("rope")
    with (common / file).open("a") as opened:
        opened.write("more = True\n")
    assert machine.harness_digest("rope") == before


MASKED, ROPES = {"masked_linear", "masked_ffn"}, {"rope", "rotate_half"}


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("rope.py", {"rope"}),
        ("_rope_cases.py", {"rope"}),
        ("rotate_half.py", ROPES),  # the reference of rope calls its reference
        ("masked_linear.py", {"masked_linear"}),
        ("_masked.py", MASKED),
        ("_views.py", MASKED | ROPES),
        ("new.py", set()),
        ("mistakes/rope.py", set()),  # words of a message
    ],
)
def test_a_row_rests_on_its_own_op_and_what_that_imports(common, file, changed):
    before = {op: machine.harness_digest(op) for op in MASKED | ROPES}
    with (common / "ops" / file).open("a") as opened:
        opened.write("more = True\n")
    assert {op for op in before if machine.harness_digest(op) != before[op]} == changed


def test_the_harness_imports_no_further_module_of_ops():
    """`OF_EVERY_OP` names them; the digest would miss another one."""
    rooms = [path for pattern in machine.HARNESS for path in paths.COMMON.glob(pattern)]
    names = {name for path in rooms for name in imported(path.read_text())}
    modules = {name.split(".")[2] for name in names if name.startswith("common.ops.")}
    files = {name for name in modules if (paths.COMMON / "ops" / f"{name}.py").exists()}
    assert files <= set(machine.OF_EVERY_OP)
