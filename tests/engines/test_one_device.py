"""The executor of one device, and which engine the options choose."""

import argparse

import pytest
import torch

from common.commands import engines
from common.engines.engine import Engine, Executor
from common.engines.ray_engine import RayEngine
from common.errors import UserError
from common.processes import VISIBLE
from tests.support.fake_ray import JOB, SOLUTIONS, FakeExecutor, fake_cluster
from tests.support.jobs import job_in


def test_what_an_earlier_run_did_is_planned_no_more():
    done = {("ada/rope", "c0"), ("bob/rope", "c0"), ("ada/rope", "c1"), ("", "c3")}
    with fake_cluster(JOB, [FakeExecutor("a", count=4)]) as engine:
        (task,) = engine.tasks(done)
        assert task.due == {"c1": ("bob/rope",), "c2": SOLUTIONS}
        assert not engine.tasks({("", f"c{number}") for number in range(4)})


def test_an_executor_without_a_gpu_is_one_line(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="torch finds no GPU"):
        Executor(job_in(folder, device="cuda"))


# --- the options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "count", "gpus"),
    [(None, 2, 2), ("3,5", 2, 2), ("GPU-1a", 1, 1), ("MIG-1,MIG-2", 1, 2), ("0,9", 1, 1)],
)
def test_the_gpus_are_those_that_are_visible(listed, count, gpus, monkeypatch):
    """A process sees one slice of MIG however many are listed, and no GPU behind a wrong number."""
    monkeypatch.delenv(VISIBLE, raising=False)
    if listed is not None:
        monkeypatch.setenv(VISIBLE, listed)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert engines.visible() == gpus


def options(**given):
    usual = {"address": None, "device": None, "tier": "smoke", "verbose": False}
    return argparse.Namespace(**usual | given)


@pytest.mark.parametrize(("seen", "given", "ray", "several"), [
    (0, {}, True, False), (1, {}, True, False), (2, {}, True, True),
    (1, {"address": "head:6379"}, True, True), (2, {}, False, False),
])  # fmt: skip
def test_one_device_needs_no_ray_and_several_are_all_taken(
    seen, given, ray, several, monkeypatch, capsys
):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: ray or None)
    monkeypatch.setattr(engines.shared, "device", lambda _: "cuda" if seen else "cpu")
    monkeypatch.setattr(engines, "visible", lambda: seen)
    engine = engines.chosen(options(**given), "grade", [])
    assert type(engine) is (RayEngine if several else Engine)
    said = capsys.readouterr().err
    assert said == "" if ray else "only the first of 2 GPUs; install Ray" in said
