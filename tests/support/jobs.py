"""A job of two solutions that executors grade without a GPU, and the verdicts it ends with."""

from common.engines.engine import Job
from tests.support.study import RIGHT, WRONG
from tests.support.workers import written

SAMPLE = 6


def job_in(folder, **fields):
    """A job over the two solutions, which are written to the folder."""
    solutions = written(folder, RIGHT, handle="alice"), written(folder, WRONG, handle="bob")
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
