"""The seed of a test run: what a test draws depends on it and on the test's name alone.

The generators of Python, numpy and torch, hypothesis, and the harness's own source of random
numbers are seeded before each test, and before the fixtures that several tests share. Another seed
explores: `nox -s test -- --seed 7`, or `--seed random`, which prints the one that it takes.
"""

import os
import random
import secrets
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager
from unittest import mock

import hypothesis
import numpy as np
import pytest
import torch

from common import draws
from common.draws import Draws
from common.grading.fork_server import ForkServer
from common.sandbox import rotation

DEFAULT = 0
MODULE = ForkServer.MODULE
"""The fork server of the product."""
VARIABLE = "STUDY_TEST_SEED"
"""Of `tests.support.seeded_server`, which seeds what a solution's process draws for the clock."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("study").addoption(
        "--seed", default=DEFAULT, type=_seed, metavar="N|random", help="what the tests draw from"
    )


def _seed(text: str) -> int:
    return secrets.randbits(32) if text == "random" else int(text)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # one of the processes of xdist
        config.option.seed = config.workerinput["seed"]
    seed = config.option.seed
    # no example is kept from run to run, and none is too slow
    hypothesis.settings.register_profile("study", database=None, deadline=None)
    hypothesis.settings.load_profile("study")
    # what its option --hypothesis-seed sets; the plugin has read that before this runs
    hypothesis.core.global_force_seed = seed
    os.environ[VARIABLE] = str(seed)
    ForkServer.MODULE = "tests.support.seeded_server"


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('seed')}"


def drawn_from(seed: int, *key: str) -> AbstractContextManager[object]:
    """Have what the harness draws inside depend on the seed and the key."""
    return mock.patch.object(draws, "SOURCE", random.Random(Draws(seed).number(*key)))


def begin(seed: int, *key: str) -> None:
    """Have all that is drawn from here on depend on the seed and the key."""
    number = Draws(seed).number(*key)
    draws.SOURCE = random.Random(number)
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
    # for what a test runs of a solution's side in its own process
    rotation.urandom = random.Random(number).randbytes


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    begin(item.config.getoption("seed"), item.nodeid, "setup")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request) -> Iterator[None]:
    """Seed what several tests share by its own name, whichever of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    seed = request.config.getoption("seed")
    begin(seed, fixturedef.baseid or "", fixturedef.argname)
    try:
        return (yield)
    finally:
        begin(seed, fixturedef.baseid or "", fixturedef.argname, "done")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    begin(item.config.getoption("seed"), item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Print the command that repeats a failure."""
    report = yield
    if report.failed:
        session = "harness" if item.get_closest_marker("slow") else "test"
        words = [item.nodeid, "--seed", str(item.config.getoption("seed"))]
        report.sections.append(("repeat", f"nox -s {session} -- {shlex.join(words)}"))
    return report


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """Return the seed of the test run."""
    return pytestconfig.getoption("seed")
