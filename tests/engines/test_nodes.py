"""What a node gets and does, and the connection to a cluster, as far as they need no Ray."""

import os
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.engines import cluster, ray_engine
from common.engines.cluster import LOOPBACK, Cluster, environment
from common.engines.ray_engine import Actor, own_cores
from common.errors import UserError
from common.paths import ROOT
from common.sandbox import landlock
from common.solutions import Solution
from tests.support import forked
from tests.support.jobs import job_in


def test_a_node_gets_the_harness_and_the_solutions_alone():
    got = environment(install=True)
    assert {"/results", "/.git", "/docs", "/tests"} <= set(got["excludes"])
    assert not {"/common", "/contributors", "/pyproject.toml"} & set(got["excludes"])
    named = {package.partition("==")[0] for package in got["pip"]["packages"]}
    assert {"torch", "msgspec"} <= named, "of the group and of the group that it includes"
    assert "pip" not in environment(install=False)


def test_a_solution_may_not_write_where_ray_unpacks_the_project(tmp_path, monkeypatch):
    """Beneath the folder of temporary files, where it may otherwise."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "other").mkdir()
    root = tmp_path / "ray" / "package"
    root.mkdir(parents=True)
    monkeypatch.setattr(landlock, "ROOT", root)

    def writable(path):
        allowed = [each for each in landlock.writable_paths() if not each.is_symlink()]
        return any(path.is_relative_to(each) for each in allowed)

    assert writable(root)
    ray_engine.leave_the_project()
    assert not writable(root) and writable(tmp_path / "other")
    assert writable(Path(tempfile.mkdtemp()))


def claim(cores, executors, told):
    """Take cores of one's own, tell which, and keep them until one is ended."""
    os.sched_getaffinity = lambda _: cores
    os.sched_setaffinity = lambda _, own: told.put(own)
    claims = own_cores(executors)
    forked.CONTEXT.Event().wait() if claims else told.put(None)


def test_each_executor_of_a_node_has_cores_that_no_other_has():
    queue, made = forked.CONTEXT.Queue(), []

    def taken(cores=range(70, 75), executors=2):
        args = (set(cores), executors, queue)
        made.append(forked.CONTEXT.Process(target=claim, args=args, daemon=True))
        made[-1].start()
        return queue.get()

    assert [taken(), taken(), taken()] == [[70, 71], [72, 73], None]
    made[0].kill()
    made[0].join()
    assert taken() == [70, 71], "they are free once it has ended"
    assert taken(range(80, 83)) is None, "fewer than two for each are shared by all"
    for each in made:
        each.kill()


def test_a_solution_is_found_in_a_nodes_copy_of_the_repository(folder, tmp_path, monkeypatch):
    inside = Solution(ROOT / "contributors" / "house" / "rope.py", "rope")
    outside = Solution(tmp_path / "alice" / "rope.py", "rope")
    job = job_in(folder, solutions=(inside, outside))
    sent = ray_engine.moved(job, ROOT, Path())
    monkeypatch.setattr(ray_engine, "ROOT", tmp_path / "ray" / "package")
    there = tmp_path / "ray" / "package" / "contributors" / "house" / "rope.py"
    assert [solution.path for solution in Actor(sent, 1)._job.solutions] == [there, outside.path]


def test_a_node_without_the_package_of_a_peer_is_one_line(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    job = job_in(folder, solutions=(Solution(Path("common/peers/quack/rope.py"), "rope"),))
    with pytest.raises(UserError, match=r"^it lacks the package quack: install it there$"):
        Actor(job, 1).start()


def test_a_cluster_of_this_machine_listens_at_the_loopback_address_alone(begun):
    Cluster(gpus=2, share=3).connect()
    assert os.environ[LOOPBACK] == "0"
    assert (begun["address"], begun["include_dashboard"]) == ("local", False)
    assert (begun["num_gpus"], begun["num_cpus"]) == (2, 6)


def test_where_ray_fails_to_connect_the_token_is_named(begun, monkeypatch):
    """Ray says no more than that it failed to connect."""

    def init(**_):
        raise ConnectionError("Failed to connect")

    fake = SimpleNamespace(init=init, exceptions=SimpleNamespace(RayError=OSError))
    monkeypatch.setattr(cluster, "ray", lambda: fake)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(UserError, match=r"a token, set RAY_AUTH_MODE=token$"):
        Cluster().connect()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(UserError, match=r"Failed to connect$"):
        Cluster().connect()


def test_an_address_is_tried_before_ray_is(begun):
    with socket.create_server(("127.0.0.2", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        Cluster(address).connect()
        assert begun["address"] == address and LOOPBACK not in os.environ
    begun.clear()
    with pytest.raises(UserError, match=f"no Ray cluster at {address}: Connection refused"):
        Cluster(address).connect()
    assert not begun
