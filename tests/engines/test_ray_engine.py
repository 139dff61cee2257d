"""The Ray engine as far as it needs no Ray: the GPUs, what travels, and the address."""

import os
import socket
from types import SimpleNamespace

import msgspec
import pytest

from common.engines import cluster, node
from common.engines.cluster import LOOPBACK
from common.engines.ray_engine import RayFleet, Slot, slots_of
from common.errors import UserError
from tests.support.stations import JOB

SLOTS = [Slot("1" * 8, f"n1 GPU {number}", "H200", number, 2) for number in range(2)]


def test_slots_are_the_gpus_of_the_nodes_that_are_alive():
    def listed(number, alive=True, **resources):
        return {"Alive": alive, "NodeID": f"{number}" * 8, "NodeManagerHostname": f"n{number}",
                "Resources": resources}  # fmt: skip

    label = {"accelerator_type:H200": 1.0}
    nodes = [listed(1, GPU=2.0, **label), listed(2, False, GPU=8.0), listed(3, CPU=4.0)]
    assert slots_of(nodes) == [
        Slot("1" * 8, f"n1 111111 GPU {number}", "H200", number, 2) for number in range(2)
    ]


def test_the_cpu_is_refused_as_its_rows_would_come_under_a_gpus_name():
    for address in (None, "127.0.0.1:1"):
        with pytest.raises(UserError, match="--engine ray needs GPUs: leave --device cpu out"):
            RayFleet(JOB, address)


def test_a_node_gets_the_harness_and_the_solutions_alone():
    got = node.runtime_environment(install=True)
    assert {"/results", "/.git", "/docs", "/tests"} <= set(got["excludes"])
    assert not {"/common", "/contributors", "/pyproject.toml"} & set(got["excludes"])
    packages = got["pip"]["packages"]
    assert any(each.startswith("torch==") for each in packages)
    assert any(each.startswith("msgspec==") for each in packages), "of the group that it includes"
    assert "pip" not in node.runtime_environment(install=False)


@pytest.mark.parametrize(("command", "slots", "asked"), [
    ("bench", 2, True), ("bench", 1, False), ("grade", 2, False),
])  # fmt: skip
def test_several_gpus_are_compared_before_they_are_timed(command, slots, asked):
    fleet = RayFleet(msgspec.structs.replace(JOB, command=command, device="cuda"), None)
    fleet._placed(SLOTS[:slots])
    assert fleet.job.pace == asked


def test_without_an_address_a_cluster_listens_at_the_loopback_address_alone(begun):
    cluster.connect(None, {})
    assert os.environ[LOOPBACK] == "0"
    assert (begun["address"], begun["include_dashboard"]) == ("local", False)


def test_a_cluster_that_asks_for_a_token_is_told(begun, monkeypatch):
    """Ray says no more than that it failed to connect."""

    def init(**_):
        raise ConnectionError("Failed to connect")

    fake = SimpleNamespace(init=init, exceptions=SimpleNamespace(RayError=OSError))
    monkeypatch.setattr(cluster, "ray", lambda: fake)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(UserError, match=r"a token, set RAY_AUTH_MODE=token$"):
        cluster.connect(None, {})
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(UserError, match=r"Failed to connect$"):
        cluster.connect(None, {})


def test_an_address_is_asked_before_ray_is(begun):
    with socket.create_server(("127.0.0.2", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        cluster.connect(address, {})
        assert begun["address"] == address and LOOPBACK not in os.environ
    begun.clear()
    with pytest.raises(UserError, match=f"no Ray cluster at {address}: Connection refused"):
        cluster.connect(address, {})
    assert not begun
