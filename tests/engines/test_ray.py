"""A Ray cluster of simulated nodes: the verdicts of one process, whatever node is lost.

The nodes' GPUs and kinds of accelerators are labels; their stations run without a GPU.
"""

import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from common import paths
from common.engines import cluster as cluster_of_ray
from common.engines import ray_engine
from common.engines.benching import Note, Recorded, bench
from common.engines.cluster import LOOPBACK
from common.engines.ray_engine import RayFleet, RayStation
from common.engines.units import SIZES, Sizes
from common.errors import UserError
from common.records import runs
from common.records.lines import Selection
from tests.support.jobs import job_in, verdicts
from tests.support.stations import takes_first
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

os.environ[LOOPBACK] = "0"  # before Ray is imported
ray = pytest.importorskip("ray", reason="the group `ray` is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture(scope="module")
def cluster():
    """A head without a GPU, which the driver connects to."""
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0}
    )
    yield made
    made.shutdown()


@pytest.fixture(autouse=True, scope="module")
def copies():
    """A folder for the nodes' copies that no solution may write to."""
    made = Path(tempfile.mkdtemp(prefix=".triton-study-test-", dir=Path.home()))
    os.environ["STUDY_NODE_FOLDER"] = str(made)
    yield made
    del os.environ["STUDY_NODE_FOLDER"]
    shutil.rmtree(made, ignore_errors=True)


def add(cluster, kind):
    return cluster.add_node(num_cpus=1, num_gpus=1, resources={f"accelerator_type:{kind}": 1})


def wait_until_dead(node):
    """Wait until Ray has seen that a node is gone; its processes outlive it by a moment."""
    assert wait_until(
        lambda: not any(each["NodeID"] == node.node_id and each["Alive"] for each in ray.nodes())
    )


def listening():
    """The addresses that this machine's Ray processes listen at, in hexadecimal digits."""
    inodes = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "ray" in (process / "cmdline").read_text():
                inodes |= {os.readlink(each) for each in (process / "fd").iterdir()}
        except OSError:  # it has ended
            continue
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes}


def test_a_node_lost_halfway_changes_no_verdict(cluster, folder, expected, monkeypatch):
    """With a unit before it, while the other node is at work."""
    monkeypatch.setitem(SIZES, "grade", Sizes(1, 1))
    nodes = [add(cluster, "H100") for _ in range(2)]
    takes_first(monkeypatch, nodes[0].node_id[:6])  # a station's name has a part of its node's
    run, left = RayStation.run, [nodes[0]]

    def lose(station, unit):
        if station._slot.node == nodes[0].node_id and left:
            cluster.remove_node(left.pop(), allow_graceful=False)
            wait_until_dead(nodes[0])
        yield from run(station, unit)

    monkeypatch.setattr(RayStation, "run", lose)
    found, lines = verdicts(RayFleet(job_in(folder), cluster.address, simulated=True))
    cluster.remove_node(nodes[1])
    assert found == expected
    assert any("was lost" in line for line in lines)
    loopback = ("0100007F:", "0000000000000000FFFF00000100007F:")
    assert all(address.startswith(loopback) for address in listening())


def test_each_kind_of_accelerator_has_its_record(cluster, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("common.engines.benching.counts", lambda *_: iter(()))
    nodes = [add(cluster, kind) for kind in ("H100", "H200")]
    job = job_in(folder, command="bench", tier="board", sample=None)
    events = list(bench(RayFleet(job, cluster.address, simulated=True), Selection(), {}))
    for each in nodes:
        cluster.remove_node(each)
    assert not [each for each in events if isinstance(each, Note)], "both take part"
    assert {each.path.parent.name for each in events if isinstance(each, Recorded)} == {
        "h100", "h200",
    }  # fmt: skip
    both = [runs.read(tmp_path / "results" / kind) for kind in ("h100", "h200")]
    h100, h200 = ({(row.key, row.verdict) for row in each.rows} for each in both)
    assert h100 == h200
    assert [len(each.rows) for each in both] == [len(h100)] * 2
    assert [each.runs[0].device_name for each in both] == ["H100", "H200"]


def test_a_cluster_without_a_gpu_is_one_line(cluster, folder):
    with pytest.raises(UserError, match="the Ray cluster has no GPU"):
        verdicts(RayFleet(job_in(folder, device="cuda"), cluster.address))
    assert not ray.is_initialized()


@pytest.mark.parametrize("error", [
    RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9"),
    ray.exceptions.AuthenticationError("Invalid token:\n    Ray: 2.9"),
    ConnectionError("Could not connect to\n    Ray: 2.9"),
])  # fmt: skip
def test_a_cluster_that_does_not_let_in_is_one_line(folder, monkeypatch, error):
    def init(**_):
        raise error

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(cluster_of_ray, "_reach", lambda address: None)
    with pytest.raises(UserError, match=r"cluster at 127.0.0.1:1: .*Ray: 2.9") as told:
        verdicts(RayFleet(job_in(folder), "127.0.0.1:1", simulated=True))
    assert "\n" not in str(told.value)


def test_packages_that_a_node_cannot_install_are_told_in_one_line():
    error = ray.exceptions.RuntimeEnvSetupError("Traceback\n  in pip\nERROR: No matching package\n")
    said = str(ray_engine._told(error))
    assert said == "Failed to set up runtime environment. ERROR: No matching package"


@ray.remote(num_gpus=1)
class Other:
    """Another job's actor."""

    def here(self):
        """Return once it has its GPU."""


def test_a_taken_gpu_takes_no_part(cluster, folder, monkeypatch):
    """Of a node's two, the other one does the work."""
    monkeypatch.setattr(ray_engine, "LONGEST_PLACING", 60.0)
    made = cluster.add_node(num_cpus=4, num_gpus=2, resources={"accelerator_type:H100": 1})
    wait = ray_engine._wait

    def late(stations, limit):
        late.other = Other.remote()
        ray.get(late.other.here.remote())
        wait(stations, limit)

    monkeypatch.setattr(ray_engine, "_wait", late)
    with RayFleet(job_in(folder), cluster.address, simulated=True) as fleet:
        assert fleet.busy == (0, 1)
        (note,) = fleet.notes
    cluster.remove_node(made)
    assert "takes no part: its GPU is taken" in note


def test_ctrl_c_ends_the_wait_for_a_gpu(cluster, folder, monkeypatch):
    made = cluster.add_node(num_cpus=4, num_gpus=1, resources={"accelerator_type:H100": 1})
    wait = ray_engine._wait

    def late(stations, limit):
        late.other = Other.remote()
        ray.get(late.other.here.remote())
        threading.Timer(3, os.kill, [os.getpid(), signal.SIGINT]).start()
        wait(stations, limit)
        pytest.fail("it waited to the end")

    monkeypatch.setattr(ray_engine, "_wait", late)
    with pytest.raises(KeyboardInterrupt):
        RayFleet(job_in(folder), cluster.address, simulated=True).__enter__()
    cluster.remove_node(made)


def test_what_the_user_can_mend_on_a_node_keeps_its_line(cluster, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("STUDY_NODE_FOLDER", str(tmp_path))
    made = add(cluster, "H100")
    with pytest.raises(UserError, match="lies where solutions may write: set STUDY_NODE_FOLDER"):
        verdicts(RayFleet(job_in(folder), cluster.address, simulated=True))
    cluster.remove_node(made)
