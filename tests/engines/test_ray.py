"""A Ray cluster of simulated nodes: the verdicts of one process, whatever is lost.

The nodes' GPUs are labels; their executors run without a GPU.
"""

import os
import signal
from pathlib import Path

import pytest

from common import paths
from common.engines import ray_engine
from common.engines.benching import Recording, bench
from common.engines.engine import Engine
from common.engines.ray_engine import OWN, RayEngine, RemoteExecutor
from common.errors import UserError
from common.processes import VISIBLE, parents
from common.records import runs
from common.records.lines import Selection
from tests.support.jobs import job_in, verdicts
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

os.environ.update(OWN)  # before Ray is imported
ray = pytest.importorskip("ray", reason="the group `ray` is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture(scope="module")
def cluster():
    """A head without a GPU, which the driver connects to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VISIBLE, raising=False)  # Ray would refuse GPUs, though they are labels alone
        head = {"num_cpus": 0, "num_gpus": 0}
        made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        yield made
        made.shutdown()


def add(cluster, count=1):
    return cluster.add_node(num_cpus=2 * count, num_gpus=count)


def descendants(process):
    """Return the processes that a process started, and those that these did."""
    own = [each for each, parent in parents() if parent == process]
    return own + [other for one in own for other in descendants(one)]


def executors(driver):
    """Return the processes of a driver's executors, by the title that Ray gives them."""
    return [one for one in descendants(driver) if title(one).startswith(b"ray::Actor")]


def title(process):
    """Return the words of a process, none where it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("count", [2, 1])
def test_a_node_lost_halfway_changes_no_verdict(cluster, folder, expected, monkeypatch, count):
    """With tasks before it and after it; where it was the only one, the command ends at once."""
    monkeypatch.setattr(ray_engine, "GRADED", 1)
    nodes = [add(cluster) for _ in range(count)]
    ask, asked = RemoteExecutor.ask, []

    def lose(executor, task):
        asked.extend([task] * bool(task))
        if task and len(asked) == 3:
            lost = nodes.pop()
            cluster.remove_node(lost, allow_graceful=False)
            assert wait_until(lambda: lost.node_id not in alive_nodes())
        ask(executor, task)

    def alive_nodes():
        return [node["NodeID"] for node in ray.nodes() if node["Alive"]]

    monkeypatch.setattr(RemoteExecutor, "ask", lose)
    engine = RayEngine(job_in(folder), cluster.address)
    if count == 1:
        with pytest.raises(UserError, match="no device is left"):
            verdicts(engine)
        return
    found, lines = verdicts(engine)
    cluster.remove_node(nodes[0])
    assert found == expected
    assert " was lost: " in lines[0]


def test_a_killed_executor_starts_again_and_rows_come_once(cluster, folder, tmp_path, monkeypatch):
    """Of two, once both are at work."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("common.engines.counting.counts", lambda *_: iter(()))
    job = job_in(folder, command="bench", tier="board", sample=None)
    ask, given = RemoteExecutor.ask, []

    def kill(executor, task):
        ask(executor, task)
        given.extend([task] * bool(task))
        if task and len(given) == 2:
            os.kill(executors(os.getpid())[-1], signal.SIGKILL)

    made = add(cluster, 2)
    with monkeypatch.context() as patch:
        patch.setattr(RemoteExecutor, "ask", kill)
        events = list(bench(RayEngine(job, cluster.address), Selection(), {}))
    cluster.remove_node(made)
    (recorded,) = (event for event in events if isinstance(event, Recording))
    (line,) = (event for event in events if isinstance(event, str))
    assert " was lost: " in line and len(line) < 200
    rows = [(row.key, row.verdict) for row in runs.read(recorded.lines.path.parent).rows]
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "alone")
    events = bench(Engine(job), Selection(), {})
    (recorded,) = (event for event in events if isinstance(event, Recording))
    alone = [(row.key, row.verdict) for row in runs.read(recorded.lines.path.parent).rows]
    assert sorted(rows) == sorted(alone)
    assert len(rows) == len(set(rows))


@ray.remote(num_gpus=1)
class Other:
    """Another job's actor."""

    def here(self):
        """Return once it has its GPU."""


def test_a_taken_gpu_takes_no_part(cluster, folder, monkeypatch):
    """Of a node's two, the other one does the work."""
    monkeypatch.setattr(ray_engine, "LONGEST_START", 30.0)
    made, connect = add(cluster, 2), RayEngine._connect

    def late(engine):
        connect(engine)
        late.other = Other.remote()
        ray.get(late.other.here.remote())

    monkeypatch.setattr(RayEngine, "_connect", late)
    with RayEngine(job_in(folder), cluster.address) as engine:
        (note,) = engine.notes
    cluster.remove_node(made)
    assert "takes no part: its GPU is taken" in note
