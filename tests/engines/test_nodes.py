"""What a node gets and does, and the connection to a cluster, as far as they need no Ray."""

import os
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.engines import ray_engine
from common.engines.ray_engine import LOOPBACK, Actor, own_cores, runtime_environment, share_cores
from common.errors import UserError
from common.paths import ROOT
from common.sandbox import landlock
from common.solutions import Solution
from tests.support import forked
from tests.support.jobs import job_in


def test_a_node_gets_the_harness_and_the_solutions_alone():
    got = runtime_environment(install=True)
    assert {"/results", "/.git", "/docs", "/tests"} <= set(got["excludes"])
    assert not {"/common", "/contributors", "/pyproject.toml"} & set(got["excludes"])
    packages = got["pip"]["packages"]
    assert any(package.startswith("torch==") for package in packages)
    assert any(package.startswith("msgspec==") for package in packages), (
        "of the group that it includes"
    )
    assert "pip" not in runtime_environment(install=False)


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
    ray_engine._leave_the_project()
    assert not writable(root)
    assert writable(tmp_path / "other")
    assert writable(tempfile.mkdtemp() and tmp_path / os.environ["TMPDIR"])
    assert tempfile.gettempdir() == os.environ["TMPDIR"] != str(tmp_path)


def test_stations_have_cores_of_their_own():
    assert share_cores(range(8), 2) == [range(4), range(4, 8)]
    assert share_cores(range(9), 2) == [range(4), range(4, 8)]
    assert share_cores([0, 2, 4, 6], 4) == [[0, 2, 4, 6]] * 4, "too few to be parted"


def claim(shares, told):
    """Take cores of one's own, tell which, and keep them until one is ended."""
    ray_engine.share_cores = lambda *_: shares
    os.sched_setaffinity = lambda _, cores: told.put(cores)
    claims = own_cores(len(shares))
    forked.CONTEXT.Event().wait() if claims else told.put(None)


def test_each_station_of_a_node_takes_the_cores_that_no_other_has():
    shares, queue, made = [[70, 71], [72, 73]], forked.CONTEXT.Queue(), []
    for expected in ([70, 71], [72, 73], None):
        made.append(forked.CONTEXT.Process(target=claim, args=(shares, queue), daemon=True))
        made[-1].start()
        assert queue.get() == expected
    made[0].kill()
    made[0].join()
    made.append(forked.CONTEXT.Process(target=claim, args=(shares, queue), daemon=True))
    made[-1].start()
    assert queue.get() == [70, 71], "they are free once it has ended"
    for each in made:
        each.kill()


def test_a_solution_is_found_in_a_nodes_copy_of_the_repository(folder, tmp_path, monkeypatch):
    inside = Solution(ROOT / "contributors" / "house" / "rope.py", "rope")
    outside = Solution(tmp_path / "alice" / "rope.py", "rope")
    job = job_in(folder, solutions=(inside, outside))
    sent = ray_engine.replace(job, solutions=ray_engine.moved(job, ray_engine.relative))
    assert Actor(sent, 1)._job == job
    monkeypatch.setattr(ray_engine, "ROOT", tmp_path / "ray" / "package")
    there = tmp_path / "ray" / "package" / "contributors" / "house" / "rope.py"
    assert [solution.path for solution in Actor(sent, 1)._job.solutions] == [there, outside.path]


def test_a_station_needs_the_packages_of_the_jobs_peers(folder, monkeypatch):
    def require(packages):
        assert packages == ["quack"]
        raise ModuleNotFoundError(name="quack")

    monkeypatch.setattr(ray_engine, "require", require)
    job = job_in(folder, solutions=(Solution(Path("common/peers/quack/rope.py"), "rope"),))
    with pytest.raises(UserError, match=r"^it lacks the package quack: install it there$"):
        Actor(job, 1).start()


def test_without_an_address_a_cluster_listens_at_the_loopback_address_alone(begun):
    ray_engine.connect(None, {}, {"num_gpus": 2})
    assert os.environ[LOOPBACK] == "0"
    assert (begun["address"], begun["include_dashboard"], begun["num_gpus"]) == ("local", False, 2)


def test_a_cluster_that_asks_for_a_token_is_told(begun, monkeypatch):
    """Ray says no more than that it failed to connect."""

    def init(**_):
        raise ConnectionError("Failed to connect")

    fake = SimpleNamespace(init=init, exceptions=SimpleNamespace(RayError=OSError))
    monkeypatch.setattr(ray_engine, "ray", lambda: fake)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(UserError, match=r"a token, set RAY_AUTH_MODE=token$"):
        ray_engine.connect(None, {}, {})
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(UserError, match=r"Failed to connect$"):
        ray_engine.connect(None, {}, {})


def test_an_address_is_asked_before_ray_is(begun):
    with socket.create_server(("127.0.0.2", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        ray_engine.connect(address, {}, {})
        assert begun["address"] == address and LOOPBACK not in os.environ
    begun.clear()
    with pytest.raises(UserError, match=f"no Ray cluster at {address}: Connection refused"):
        ray_engine.connect(address, {}, {})
    assert not begun
