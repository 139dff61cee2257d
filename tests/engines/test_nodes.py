"""What a node gets and does, and the connection to a cluster, as far as they need no Ray."""

import os
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.engines import ray_engine
from common.engines.ray_engine import LOOPBACK, OWN, Actor, RayEngine, own_cores
from common.errors import UserError
from common.paths import ROOT
from common.sandbox import landlock
from common.solutions import Solution
from tests.support.fake_ray import JOB
from tests.support.jobs import job_in


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


@pytest.mark.parametrize(("cores", "executors", "expected"), [
    (range(70, 75), 2, [[70, 71], [72, 73]]),
    (range(80, 83), 2, [[80, 81, 82]] * 2),
])  # fmt: skip
def test_each_executor_of_a_node_has_cores_of_its_own(cores, executors, expected, monkeypatch):
    """Fewer than two for each are shared by all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*cores})
    assert [own_cores(index, executors) for index in range(executors)] == expected


def test_a_solution_is_found_in_a_nodes_copy_of_the_repository(folder, tmp_path, monkeypatch):
    inside = Solution(ROOT / "contributors" / "house" / "rope.py", "rope")
    outside = Solution(tmp_path / "alice" / "rope.py", "rope")
    there = tmp_path / "ray" / "package"
    sent = ray_engine.moved(job_in(folder, solutions=(inside, outside)), ROOT, Path())
    found = ray_engine.moved(sent, Path(), there)
    paths = [solution.path for solution in found.solutions]
    assert paths == [there / "contributors" / "house" / "rope.py", outside.path]


def test_a_node_without_the_package_of_a_peer_is_one_line(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    job = job_in(folder, solutions=(Solution(Path("common/peers/quack/rope.py"), "rope"),))
    with pytest.raises(UserError, match=r"^it lacks the package quack: install it there$"):
        next(Actor(job, 0, 1).run(None))


# --- the connection -------------------------------------------------------------------------------


@pytest.fixture
def connected(monkeypatch):
    """Return a function that connects an engine, and returns what Ray is started with."""
    asked = {}
    fake = SimpleNamespace(
        init=asked.update,
        nodes=lambda: [],
        shutdown=lambda: None,
        exceptions=SimpleNamespace(RayError=OSError),
    )
    monkeypatch.setattr(ray_engine, "ray", lambda: fake)
    for name in (*OWN, "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def connected(*of):
        with pytest.raises(UserError) as told:
            RayEngine(JOB, *of).__enter__()
        return asked, str(told.value)

    return connected


def test_a_cluster_of_this_machine_listens_at_the_loopback_address_alone(connected):
    asked, says = connected(None, 2)
    assert os.environ[LOOPBACK] == "0"
    assert (asked["address"], asked["include_dashboard"]) == ("local", False)
    assert (asked["num_gpus"], asked["num_cpus"]) == (2, 2)
    excluded = asked["runtime_env"]["excludes"]
    assert {"/results", "/.git", "/docs", "/tests"} <= set(excluded)
    assert not {"/common", "/contributors", "/pyproject.toml"} & set(excluded)
    assert "has no GPU" in says


def test_an_address_is_tried_before_ray_is_and_the_token_is_named(connected):
    with socket.create_server(("127.0.0.2", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        asked, says = connected(address)
        assert asked["address"] == address and LOOPBACK not in os.environ
        assert "has no GPU" in says
    for wrong, why in ((address, "refused"), ("head", "invalid literal")):
        asked.clear()
        _, says = connected(wrong)
        assert says.startswith(f"no connection to a Ray cluster at {wrong}: ") and not asked
        assert why in says and says.endswith("a token, set RAY_AUTH_MODE=token")
