"""The processes of a test run: some see the GPU, and one more than there are cores see none.

What tests a GPU stands in files named `test_..._on_gpu.py`, and what runs solutions runs them on
one; the processes that see the GPU take these files, and the others the rest. So
the path without a GPU is tested on every machine.
"""

import contextlib
import fcntl
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

import execnet
import pytest
import torch
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from common.processes import VISIBLE
from common.solutions import Solution

SHARING = 4
"""Processes that share the GPU: its driver makes one CUDA context after the other."""
TOGETHER = 16
"""Solutions that a process grades at the same time on a GPU: each has a context of 0.6 GB."""
MOST = 16
"""Processes that see no GPU, however many cores there are: each takes a gigabyte or two."""
SOLUTIONS = ("test_solutions.py", "test_honest.py")
"""What runs solutions where `--device` says."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("study").addoption(
        "--device",
        choices=("cpu", "cuda"),
        help="where solutions run; default: a GPU if there is one",
    )


def chosen(config: pytest.Config) -> str:
    """Return where solutions run."""
    available = torch.cuda.is_available()
    if config.option.device == "cuda" and not available:
        raise pytest.UsageError("study: there is no GPU that torch can use: leave --device out")
    return config.option.device or ("cuda" if available else "cpu")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Decide where solutions run, once for all processes; one process by itself sees no GPU."""
    if hasattr(config, "workerinput"):  # one of the processes of xdist
        config.option.device = config.workerinput["device"]
        return
    if (config.option.numprocesses or 0) < 2:
        if config.option.device == "cuda":
            raise pytest.UsageError("study: a GPU takes two processes or more: leave -n out")
        config.option.device = "cpu"
        os.environ[VISIBLE] = ""
    config.option.device = chosen(config)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of processes: one more than cores, since tests wait for others' work."""
    cores = min(len(os.sched_getaffinity(0)) + 1, MOST)
    return cores + (SHARING if chosen(config) == "cuda" else 0)


def pytest_xdist_setupnodes(config: pytest.Config, specs: list[execnet.XSpec]) -> None:
    """Hide the GPU from all processes but the first ones."""
    sharing = min(SHARING, len(specs) // 2) if config.option.device == "cuda" else 0
    for index in range(sharing, len(specs)):
        specs[index] = execnet.XSpec(f"popen//env:{VISIBLE}=")


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return Files(config, log)


def on_gpu(path: str, config: pytest.Config) -> bool:
    """Return whether the tests of a file need a GPU."""
    name = path.rpartition("/")[2]
    return name.endswith("_on_gpu.py") or (name in SOLUTIONS and config.option.device == "cuda")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where none is used; let the solutions and the corpora begin first."""
    for item in items:
        if on_gpu(item.path.name, config):
            item.add_marker(pytest.mark.gpu)
            if config.option.device == "cpu":
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
    # begun last, what takes longest would run while other processes wait
    items.sort(
        key=lambda item: (
            not item.path.name.endswith("_on_gpu.py") or item.path.parent.name == "corpus",
            item.path.name not in SOLUTIONS,
            item.path.parent.name != "corpus",
        )
    )


def scopes(nodeids: Iterable[str], config: pytest.Config) -> dict[str, str]:
    """Return the scope of each test: the tests of a scope run in one process.

    The scope is the file. On a GPU, TOGETHER solutions of an op are a scope, since a process
    compares all results on one core. For example, the scope of
    `test_wrong_on_gpu.py::test_is_caught[aborts/rope]`, one of the first sixteen, is
    `test_wrong_on_gpu.py::rope-0`.
    """
    found: dict[str, str] = {}
    known: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for nodeid in nodeids:
        path = nodeid.partition("::")[0]
        name = re.search(r"\[(\w+)/(\w+)\]$", nodeid) if on_gpu(path, config) else None
        if name:
            handles = known[path, name[2]]
            index = handles.setdefault(name[1], len(handles))
            found[nodeid] = f"{path}::{name[2]}-{index // TOGETHER}"
        else:
            found[nodeid] = path
    return found


@pytest.fixture(scope="module")
def together(request: pytest.FixtureRequest) -> Callable[[Solution], tuple[Solution, ...]]:
    """Return a function that returns the solutions in the scope of a solution's tests."""
    tests = {item.nodeid: item for item in request.session.items}
    scope_of, members = dict[Solution, str](), defaultdict[str, dict[Solution, None]](dict)
    for nodeid, scope in scopes(tests, request.config).items():
        parameters = getattr(tests[nodeid], "callspec", None)
        for solution in parameters.params.values() if parameters else ():
            if isinstance(solution, Solution) and tests[nodeid].path == request.path:
                scope_of[solution] = scope
                members[scope][solution] = None
    return lambda solution: tuple(members[scope_of[solution]])


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[None]]:
    """Return a context in which this process shares the GPU with others, or has it `alone`.

    The processes of a run share the folder of their temporary folders. Where a process times, the
    work of others would be seen.
    """
    path = tmp_path_factory.getbasetemp().parent / "gpu"

    @contextlib.contextmanager
    def used(alone: bool = False) -> Iterator[None]:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield

    return used


@pytest.fixture(scope="module", autouse=True)
def turn(
    request: pytest.FixtureRequest, gpu: Callable[..., AbstractContextManager[None]]
) -> Iterator[None]:
    """Let the modules that use the GPU share it; those marked `alone` take it by themselves."""
    on_cpu = request.config.option.device == "cpu" or not on_gpu(request.path.name, request.config)
    with contextlib.nullcontext() if on_cpu or request.node.get_closest_marker("alone") else gpu():
        yield


@pytest.fixture(scope="module")
def two_connections() -> Iterator[None]:
    """Let CUDA contexts have two connections, not eight: an H100 makes 48 in 5 s instead of 12."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "2")
        yield


class Files(LoadScopeScheduling):
    """Gives each scope to one process: one that sees a GPU if its tests need it, else another."""

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes[nodeid]

    def _suits(self, node: WorkerController, scope: str) -> bool:
        if self.config.option.device == "cpu":
            return True
        path = scope.partition("::")[0]
        return on_gpu(path, self.config) == (VISIBLE not in node.gateway.spec.env)

    def schedule(self) -> None:
        """Shut processes down for which there are no files, then distribute the files."""
        if self.collection is None and self.registered_collections:
            collected = next(iter(self.registered_collections.values()))
            self._scopes = scopes(collected, self.config)
            paths = dict.fromkeys(self._scopes.values())
            free = {node: [p for p in paths if self._suits(node, p)] for node in self.nodes}
            for node, several in reversed(free.items()):
                others = [other for other in self.nodes if free[other] == several]
                if len(others) > len(several):
                    self.assigned_work.pop(node)
                    node.shutdown()
        super().schedule()

    def _reschedule(self, node: WorkerController) -> None:
        """Give the process more to do; without another file for it, it ends once it is done."""
        if node.shutting_down:
            return
        if any(self._suits(node, path) for path in self.workqueue):
            super()._reschedule(node)
        else:
            node.shutdown()

    def _assign_work_unit(self, node: WorkerController) -> None:
        first = next((path for path in self.workqueue if self._suits(node, path)), None)
        if first:
            self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)
