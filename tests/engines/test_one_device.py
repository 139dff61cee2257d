"""The executor of one device, and which engine the options choose."""

import argparse
import sys
from types import SimpleNamespace

import pytest
import torch

from common import cli
from common.commands import engines, gpus
from common.engines.engine import Executor, LocalEngine
from common.engines.ray_engine import RayEngine
from common.errors import UserError
from common.measure.rows import Measured
from common.processes import VISIBLE
from tests.support.executors import JOB, SOLUTIONS
from tests.support.executors import FakeExecutor as MadeUp
from tests.support.fake_ray import FakeCluster
from tests.support.jobs import job_in
from tests.support.records import row


def test_one_device_yields_each_answer_as_it_comes():
    """A kill then loses the answers under way alone, not those of a whole op."""
    answers = iter(["first", "second"])
    engine = LocalEngine(JOB)
    engine._executor = SimpleNamespace(run=lambda tasks: answers, memory={})
    found = engine.run({"cpu": []})
    assert next(found) == ("cpu", ["first"])
    assert next(answers) == "second"


def test_what_an_earlier_run_did_is_planned_no_more():
    done = {("ada/rope", "rope", "c0"), ("bob/rope", "rope", "c0"), ("ada/rope", "rope", "c1")}
    with FakeCluster(JOB, [MadeUp("a", count=3)]) as engine:
        (task,) = engine.tasks("a-gpu", done=done)
        assert task.due == {"c1": ("bob/rope",), "c2": SOLUTIONS}
        assert not engine.tasks("a-gpu", done={(n, "rope", f"c{i}") for n in SOLUTIONS
                                               for i in range(3)})  # fmt: skip


def test_a_row_tells_its_node_and_device():
    device_info = SimpleNamespace(node="n1", uuid="GPU-a")
    found = Executor._answer(
        SimpleNamespace(device_info=device_info), [Measured(row(), None, None)]
    )
    assert [(each.node, each.device) for each in found.rows] == [("n1", "GPU-a")]


def test_a_station_without_a_gpu_is_one_line(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="torch finds no GPU"):
        Executor(job_in(folder, device="cuda"))


# --- the options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "count", "names"),
    [
        (None, 2, ["0", "1"]),
        ("3,5", 2, ["3", "5"]),
        ("GPU-1a", 1, ["GPU-1a"]),
        ("MIG-1,MIG-2", 1, ["MIG-1", "MIG-2"]),
        ("0,9", 1, ["0"]),
    ],
)
def test_the_gpus_are_those_that_are_visible(listed, count, names, monkeypatch):
    """A process sees one slice of MIG however many are listed, and no GPU behind a wrong number."""
    monkeypatch.delenv(VISIBLE, raising=False)
    if listed is not None:
        monkeypatch.setenv(VISIBLE, listed)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert gpus.visible() == names


def options(**given):
    return argparse.Namespace(
        **{"engine": None, "address": None, "install": False, "stations": None, "device": "cpu",
           "tier": "smoke", "memory": None, "verbose": False} | given
    )  # fmt: skip


@pytest.mark.parametrize(("seen", "given", "several"), [
    ([], {}, False), (["0"], {}, False), (["0", "1"], {}, True), (["0"], {"engine": "ray"}, True),
    (["0", "1"], {"engine": "local"}, False), ([], {"stations": 1}, True),
])  # fmt: skip
def test_one_device_needs_no_ray_and_several_are_all_taken(
    seen, given, several, installed, monkeypatch, capsys
):
    monkeypatch.setattr(engines.shared, "found_device", lambda _: "cuda" if seen else "cpu")
    monkeypatch.setattr(gpus, "visible", lambda: seen)
    engine = engines.chosen(options(device=None, **given), "grade", [])
    assert type(engine) is (RayEngine if several else LocalEngine)
    if several:
        assert (engine._gpus, engine._share) == (len(seen), 1)
    assert not capsys.readouterr().err


def test_of_several_gpus_one_is_taken_where_ray_is_missing_and_a_line_says_so(
    installed, monkeypatch, capsys
):
    installed["ray"] = False
    monkeypatch.setattr(engines.shared, "found_device", lambda _: "cuda")
    monkeypatch.setattr(gpus, "visible", lambda: ["0", "1"])
    assert type(engines.chosen(options(), "bench", [])) is LocalEngine
    assert "using only the first of 2 GPUs; install Ray" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "says"), [
    ({"address": "head:6379"}, "add --engine ray"),
    ({"install": True}, "add --engine ray"),
    ({"engine": "local", "stations": 1}, "leave --address and --engine"),
    ({"engine": "ray", "address": "head:1", "stations": 1}, "leave --address and --engine"),
    ({"engine": "ray", "device": "cuda:1"}, "--device cuda:1 selects one GPU"),
    ({"engine": "ray"}, "--engine ray needs GPUs: leave --device cpu out"),
], ids=str)  # fmt: skip
def test_options_that_do_not_go_together_are_said(given, says, installed):
    with pytest.raises(UserError, match=says):
        engines.chosen(options(**given), "grade", [])


def test_stations_that_share_a_gpu_time_nothing(installed, monkeypatch):
    monkeypatch.setattr(engines.shared, "found_device", lambda _: "cuda")
    with pytest.raises(UserError, match="--stations would disturb a GPU's times"):
        engines.chosen(options(stations=1), "bench", [])


@pytest.mark.parametrize("text", ["head", "head:", ":6379", "auto", "ray://head:10001"])
def test_an_address_is_a_host_and_a_port(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["grade", "--engine", "ray", "--address", text])
    assert f"--address: {text!r} is no HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--engine=ray", "--stations=1"])
def test_a_cluster_needs_ray(word, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["grade", word])
    assert ended.value.code == 2
    assert "the package ray is missing" in capsys.readouterr().err
