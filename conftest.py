"""Options of the test run, the parametrization over solutions and cases, and shared fixtures.

For example: nox -s test -- --only house --op rope --tier smoke --device cpu
"""

from __future__ import annotations

import importlib.util
import os

import pytest

from common.importing import NEEDED
from common.spec import TIERS

if missing := [
    package for package in (*NEEDED, "rich", "matplotlib") if not importlib.util.find_spec(package)
]:
    names = " ".join(missing)
    raise SystemExit(f"study: missing packages: {names}; python -m pip install {names}")

# must be set before torch is imported; see common/commands/options.py
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Tests fill the cores; threads of torch that wait for each other there only take time from them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from common import ops, solutions
from common.errors import UserError
from common.grading.compiling import Compiler
from common.grading.fork_server import ForkServer
from common.grading.graded import TooLarge
from common.grading.sweep import Sweep
from common.grading.tiers import tier_cases

pytest_plugins = [
    f"tests.support.{name}" for name in ("asking", "browsing", "compilers", "study", "tuning")
]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("study")
    group.addoption("--op", help="only solutions of this op")
    group.addoption("--only", metavar="HANDLE[/FILE]", help="only these, with commas")
    group.addoption("--tier", choices=TIERS, default="smoke")
    group.addoption("--write-docs", action="store_true", help="write the tables of docs/grading.md")
    group.addoption(
        "--rounds", type=int, default=1, help="grade the honest set so often; see there"
    )
    group.addoption("--device", choices=("cpu", "cuda"), help="default: a GPU if there is one")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the processes of the test run, one where all would share a GPU.

    One more than there are cores: a third of the time tests wait for processes of their own.
    """
    return 1 if _device(config) == "cuda" else min(len(os.sched_getaffinity(0)) + 1, 4)


def pytest_configure(config: pytest.Config) -> None:
    """Report wrong options in one line, before pytest collects tests."""
    try:
        _pairs(config)
    except UserError as error:
        raise pytest.UsageError(f"study: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `graded` with each chosen solution on each case of its op in the tier."""
    if "graded" in metafunc.fixturenames:
        pairs = _pairs(metafunc.config)
        ids = [f"{solution.name}-{case.name}" for solution, case in pairs]
        metafunc.parametrize("graded", pairs, ids=ids, indirect=True)


def _pairs(config: pytest.Config) -> list:
    op_name, only, tier = map(config.getoption, ("op", "only", "tier"))
    chosen = solutions.select(solutions.discover(), op_name, only)
    return [
        (solution, case)
        for op, cases in tier_cases(chosen, tier, _device(config))
        for case in cases
        for solution in chosen
        if solution.op == op.name
    ]


def _device(config: pytest.Config) -> str:
    available = torch.cuda.is_available()
    if config.getoption("device") == "cuda" and not available:
        raise UserError("there is no GPU that torch can use: leave --device out")
    return config.getoption("device") or ("cuda" if available else "cpu")


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    return _device(pytestconfig)


@pytest.fixture(scope="session")
def fork_server():
    """Return the fork server, without a GPU, of all tests that do not start their own.

    One for all tests, since a fork server imports torch when it starts, which takes seconds.
    """
    server = ForkServer("cpu")
    yield server
    server.close()


@pytest.fixture(scope="session")
def sweep(request: pytest.FixtureRequest, device: str):
    server = request.getfixturevalue("fork_server") if device == "cpu" else None
    with Compiler(device) as compiler, Sweep(device, server=server, grade=compiler.grade) as sweep:
        yield sweep


@pytest.fixture(scope="session")
def verdicts(request: pytest.FixtureRequest, sweep: Sweep):
    """Return a function that takes a solution and a case and returns the verdicts.

    Its first call for a case grades all solutions of that case at the same time.
    """
    asked = {
        item.callspec.params["graded"]
        for item in request.session.items
        if "graded" in getattr(getattr(item, "callspec", None), "params", {})
    }
    known = {}

    def look_up(solution, case):
        if (solution, case) not in known:
            due = [other for other, its_case in asked if its_case == case]
            for graded in sweep.grade(ops.load(solution.op), [case], due):
                if isinstance(graded, TooLarge):
                    pytest.skip(f"does not fit this device: {graded.reason}")
                known[graded.solution, case] = graded.verdicts
        return known.pop((solution, case))

    return look_up


@pytest.fixture
def graded(request: pytest.FixtureRequest, verdicts):
    return verdicts(*request.param)
