"""Options of the test run, the parametrization over solutions and cases, and shared fixtures.

For example: nox -s test -- --only house --op rope --tier smoke --device cpu
"""

from __future__ import annotations

import importlib.util
import os

import pytest

from common.processes import NEEDED, import_torch
from common.spec import TIERS

if missing := [package for package in (*NEEDED, "rich") if not importlib.util.find_spec(package)]:
    names = " ".join(missing)
    raise SystemExit(f"study: missing packages: {names}; python -m pip install {names}")

# must be set before torch is imported; see common/commands/options.py
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# The tests occupy all cores; torch's threads would only slow them down by waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
import_torch()  # which no collection of garbage goes through then: each took 0.2 s

from xdist.workermanage import WorkerController

from common import folders, ops, solutions
from common.errors import UserError
from common.grading.compiling import Compiler
from common.grading.device import tier_cases
from common.grading.fork_server import ForkServer
from common.grading.sweep import Sweep, TooLarge

pytest_plugins = [
    f"tests.support.{name}" for name in ("workers", "browsing", "devices", "seeds", "study")
]
CHOSEN_ONCE = ("cases", "device", "seed")
"""The options that a plugin or this file decides in the first process, for all."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("study")
    group.addoption("--op", help="only solutions of this op")
    group.addoption("--only", metavar="HANDLE[/FILE]", help="only these, comma-separated")
    group.addoption("--tier", choices=TIERS, default="smoke")
    group.addoption("--write-docs", action="store_true", help="write the tables of docs/")


def pytest_configure(config: pytest.Config) -> None:
    """Choose solutions and cases; report wrong options in one line, before tests are collected.

    The first process determines the cases that fit the GPU, and sends them to the test workers,
    which see no GPU.
    """
    if hasattr(config, "workerinput"):
        config.option.cases = config.workerinput["cases"]
        return
    op_name, only, tier, device = map(config.getoption, ("op", "only", "tier", "device"))
    try:
        chosen = solutions.select(solutions.discover(), op_name, only)
        config.option.cases = {
            op.name: [case.name for case in cases] for op, cases in tier_cases(chosen, tier, device)
        }
    except UserError as error:
        raise pytest.UsageError(f"study: {error}") from None


def pytest_report_header() -> list[str]:
    return [f"contributors/{name} is left out: {why}" for name, why in folders.left_out().items()]


def pytest_configure_node(node: WorkerController) -> None:
    """Have all processes take what the first one chose or drew."""
    node.workerinput |= {name: getattr(node.config.option, name) for name in CHOSEN_ONCE}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `graded` with each chosen solution on each case of its op in the tier."""
    if "graded" in metafunc.fixturenames:
        chosen, tier = _tier(metafunc.config)
        pairs = [
            (solution, case)
            for op, cases in tier
            for case in cases
            for solution in chosen
            if solution.op == op.name
        ]
        ids = [f"{solution.name}-{case.name}" for solution, case in pairs]
        metafunc.parametrize("graded", pairs, ids=ids, indirect=True)


def _tier(config: pytest.Config) -> tuple[list, list]:
    """Return the chosen solutions, and the tier's cases of each of their ops."""
    op_name, only, tier, device = map(config.getoption, ("op", "only", "tier", "device"))
    chosen = solutions.select(solutions.discover(), op_name, only)
    return chosen, [
        (op, [case for case in op.tier(tier, device) if case.name in names])
        for op, names in ((ops.load(name), names) for name, names in config.option.cases.items())
    ]


@pytest.fixture(scope="session")
def fork_server():
    """Return a fork server without a GPU, which the tests share.

    Each start of a fork server imports torch, which takes seconds.
    """
    server = ForkServer("cpu")
    yield server
    server.close()


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    return pytestconfig.getoption("device")


@pytest.fixture(scope="session")
def sweep(request: pytest.FixtureRequest, device: str):
    server = request.getfixturevalue("fork_server") if device == "cpu" else None
    with Sweep(device, overlap=True, server=server) as sweep:
        yield sweep


@pytest.fixture(scope="session")
def compiler_behind(device: str):
    with Compiler(device) as compiler:
        yield compiler.behind


@pytest.fixture(scope="session")
def verdicts(request: pytest.FixtureRequest, sweep: Sweep, compiler_behind):
    """Return a function that takes a solution and a case and returns the verdicts.

    Cases are graded concurrently on all cores; a test waits for its verdicts.
    """
    from tests.support.seeds import drawn_from  # after pytest has rewritten it

    requested = {
        item.callspec.params["graded"]
        for item in request.session.items
        if "graded" in getattr(getattr(item, "callspec", None), "params", {})
    }
    chosen, tier = _tier(request.config)
    known, broken = {}, {}

    def sweeps():
        for op, cases in tier:
            try:
                answers = sweep.grade(op, cases, chosen, lambda *pair: pair not in requested)
                yield from compiler_behind(answers)
            except Exception as error:  # only this op's other tests lack their verdicts
                broken[op.name] = error

    results = sweeps()

    def look_up(solution, case):
        while (solution, case) not in known:
            with drawn_from(request.config.getoption("seed"), "solutions"):
                graded = next(results, None)
            if graded is None:
                raise RuntimeError("no verdict came") from broken.get(solution.op)
            if isinstance(graded, TooLarge):  # follows the verdicts of the cases that fit
                for other in chosen:
                    known.setdefault((other, graded.case), graded.reason)
            else:
                known[graded.solution, graded.case] = graded.verdicts
        if isinstance(answer := known.pop((solution, case)), str):
            pytest.skip(f"does not fit this device: {answer}")
        return answer

    return look_up


@pytest.fixture
def graded(request: pytest.FixtureRequest, verdicts):
    return verdicts(*request.param)
