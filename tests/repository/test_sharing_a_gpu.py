"""The processes of a test run on a machine with a GPU: which files each of them takes."""

from types import SimpleNamespace

import pytest
from xdist.workermanage import WorkerController

from common.processes import VISIBLE
from tests.support.devices import Files, pytest_xdist_setupnodes

ON_GPU = ["tests/contributors/test_solutions.py", "tests/a/test_clock_on_gpu.py"]
WITHOUT = ["tests/a/test_clock.py", "tests/b/test_stats.py", "tests/b/test_draws.py"]


class Node:
    """A process that runs what it is sent, all but the last test at once, as xdist's do."""

    def __init__(self, spec):
        self.gateway, self.sent = SimpleNamespace(spec=spec, id="gw"), []
        self.shutting_down, self.done = False, 0

    def send_runtest_some(self, indices):
        self.sent += indices

    def shutdown(self):
        self.shutting_down = True

    def ready(self):
        """Return the next test if there is one and another behind it, or no other to come."""
        more = len(self.sent) - self.done
        if more > 1 or (more and self.shutting_down):
            self.done += 1
            return self.sent[self.done - 1]
        return None


def run(paths, processes, device="cuda", tests=3):
    """Run made-up files; return those that processes with a GPU ran, and those of the others."""
    option = SimpleNamespace(device=device, loadscopereorder=False)
    specs = [SimpleNamespace(env={}) for _ in range(processes)]
    config = SimpleNamespace(option=option, getvalue=lambda name: ["popen"] * processes)
    pytest_xdist_setupnodes(config, specs)
    scheduler = Files(config, None)
    nodes: list[WorkerController] = [Node(spec) for spec in specs]
    collected = [f"{path}::test_{n}" for path in paths for n in range(tests)]
    for node in nodes:
        scheduler.add_node(node)
    for node in nodes:
        scheduler.add_node_collection(node, collected)
    scheduler.schedule()
    ran = {True: [], False: []}
    while waiting := [(node, index) for node in nodes if (index := node.ready()) is not None]:
        for node, index in waiting:
            ran[VISIBLE not in node.gateway.spec.env].append(collected[index])
            scheduler.mark_test_complete(node, index)
        if scheduler.tests_finished:
            for node in nodes:
                node.shutdown()
    assert sorted(ran[True] + ran[False]) == sorted(collected), "each test, once"
    return [{test.partition("::")[0] for test in ran[sees]} for sees in (True, False)]


@pytest.mark.parametrize("processes", [2, 3, 6, 19])
def test_what_needs_a_gpu_runs_where_one_is_seen_and_nothing_else_does(processes):
    assert run([*WITHOUT, *ON_GPU], processes) == [{*ON_GPU}, {*WITHOUT}]


@pytest.mark.parametrize("tests", [1, 2, 9])
def test_files_of_one_kind_leave_nobody_waiting(tests):
    assert run(WITHOUT[:1], 6, tests=tests) == [set(), {*WITHOUT[:1]}]
    assert run(ON_GPU[:1], 6, tests=tests) == [{*ON_GPU[:1]}, set()]


def test_without_a_gpu_every_process_takes_every_file():
    assert run([*WITHOUT, *ON_GPU], 3, device="cpu") == [set(), {*WITHOUT, *ON_GPU}]


def test_half_of_few_processes_share_the_gpu():
    specs = [SimpleNamespace(env={}) for _ in range(2)]
    pytest_xdist_setupnodes(SimpleNamespace(option=SimpleNamespace(device="cuda")), specs)
    assert [VISIBLE in spec.env for spec in specs] == [False, True]
