"""The job of two solutions whose verdicts an engine over several devices must find too."""

import functools

import pytest

from common.engines.engine import Engine
from common.grading import sweep
from tests.support.jobs import SAMPLE, job_in, verdicts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def expected(folder, fork_server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "Sweep", functools.partial(sweep.Sweep, server=fork_server))
        found, _ = verdicts(Engine(job_in(folder)))
    assert len(found) == 2 * 2 * SAMPLE
    assert {"PASSED", "INCORRECT_NUMERICAL"} <= set(found.values())
    return found
