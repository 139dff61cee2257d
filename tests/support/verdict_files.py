"""Files of verdicts that a `grade --json` of the made-up job goes on from."""

import pytest

from tests.support.executors import JOB


@pytest.fixture
def target(tmp_path, monkeypatch):
    """Return where it writes; its solutions and the harness do not change meanwhile."""
    same = dict.fromkeys(JOB.solutions, ("sources", "harness"))
    monkeypatch.setattr("common.engines.grading.digests_of", lambda solutions: same)
    return tmp_path / "verdicts.json"
