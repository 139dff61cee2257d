"""A job of two solutions that executors grade without a GPU, and the verdicts it ends with."""

import pytest

from common.engines.engine import Engine, Job
from common.grading import sweep
from common.solutions import discover
from tests.support.study import RIGHT, WRONG

SAMPLE = 6


def job_in(folder, texts=(RIGHT, WRONG), **fields):
    """A job over the two solutions, which are written to the folder."""
    for handle, text in zip(("alice", "bob"), texts, strict=True):
        source = folder / "contributors" / handle / "rotate_half.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
    solutions = tuple(discover(folder / "contributors"))
    return Job(**{"command": "grade", "device": "cpu", "solutions": solutions, "tier": "smoke",
                  "sample": SAMPLE} | fields)  # fmt: skip


def verdicts(engine):
    """The verdict of each solution, case and direction, each once; and the lines for the user."""
    found, lines = {}, []
    with engine:
        for event in engine.run(engine.tasks()):
            for verdict in getattr(event, "verdicts", ()):
                key = verdict.solution, verdict.case, verdict.direction
                assert key not in found
                found[key] = verdict.verdict
            if isinstance(event, str):
                lines.append(event)
    return found, lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def expected(folder, fork_server):
    with pytest.MonkeyPatch.context() as patch:
        one = sweep.Sweep
        patch.setattr(sweep, "Sweep", lambda *of, **how: one(*of, **how, server=fork_server))
        found, _ = verdicts(Engine(job_in(folder)))
    assert len(found) == 2 * 2 * SAMPLE
    assert {"PASSED", "INCORRECT_NUMERICAL"} <= set(found.values())
    return found
