"""What a driver and its stations say to each other, and what the options choose."""

import argparse
import dataclasses
import sys

import msgspec
import pytest
import torch

from common import cli
from common.commands import engines, gpus
from common.engines.local import Here
from common.engines.units import (
    Ready,
    Rows,
    Source,
    Unit,
    Verdicts,
    decode_event,
    decode_job,
    decode_unit,
    encode,
)
from common.errors import UserError
from common.paths import CONTRIBUTORS, ROOT
from common.processes import VISIBLE
from common.solutions import Solution
from common.verdicts import Verdict
from tests.support.records import SAMPLES, row
from tests.support.stations import JOB, Station

VERDICT = Verdict("a/rope", "rope", "c0", "forward", "PASSED", error=0.5, notes=("slow",))
MESSAGES = [
    Rows((row(), row(direction="backward")), (SAMPLES, None)),
    Verdicts.of_all([VERDICT]),
    Station("a").start(),
]


def test_what_is_said_is_heard():
    for event in MESSAGES:
        assert decode_event(encode(event)) == event
    assert decode_job(encode(JOB)) == JOB
    unit = Unit(op="rope", cases=("c0",), solutions=("a/rope",), done=frozenset([("b", "c0")]))
    assert decode_unit(encode(unit)) == unit
    assert decode_event(encode(MESSAGES[1])).verdicts == [VERDICT]
    assert isinstance(MESSAGES[2], Ready) and MESSAGES[2].place.kind == "a-gpu"


@pytest.mark.parametrize("event", MESSAGES[:2], ids=lambda event: type(event).__name__)
def test_words_of_another_form_are_refused(event):
    line = encode(event).replace(b'"PASSED"', b"7")
    with pytest.raises(msgspec.ValidationError):
        decode_event(line)


@pytest.mark.parametrize("error", [float("inf"), float("nan")])
def test_an_error_that_json_does_not_have_is_refused(error):
    """As null it would read as none."""
    with pytest.raises(ValueError, match="errors of"):
        encode(Rows((row(error=error),), (None,)))
    with pytest.raises(ValueError, match="errors of"):
        encode(Verdicts.of_all([dataclasses.replace(VERDICT, error=error)]))


def test_a_source_is_found_in_any_copy_of_the_repository(tmp_path):
    inside = Solution(CONTRIBUTORS / "house" / "rope.py", "rope")
    assert Source.of(inside) == Source("contributors/house/rope.py", "rope")
    assert Source.of(inside).solution == inside
    outside = Solution(tmp_path / "alice" / "rope.py", "rope")
    assert Source.of(outside).solution == outside
    assert ROOT not in outside.path.parents


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
        **{"engine": "local", "address": None, "install": False, "stations": None, "device": "cpu",
           "tier": "smoke", "memory": None, "verbose": False} | given
    )  # fmt: skip


def test_without_a_gpu_this_process_is_the_station():
    engine = engines.chosen(options(), "grade", [])
    assert isinstance(engine, Here)
    assert len(engines.chosen(options(stations=2), "grade", [])._stations) == 2


@pytest.mark.parametrize(
    "given",
    [{"address": "head:6379"}, {"install": True}, {"engine": "ray", "stations": 2},
     {"engine": "ray", "device": "cuda:1"}],
    ids=str,
)  # fmt: skip
def test_options_that_do_not_go_together_are_said(given, monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: True)
    with pytest.raises(UserError, match="--"):
        engines.chosen(options(**given), "grade", [])


@pytest.mark.parametrize("text", ["head", "head:", ":6379", "auto", "ray://head:10001"])
def test_an_address_is_a_host_and_a_port(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["grade", "--engine", "ray", "--address", text])
    assert f"--address: {text!r} is no HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "seen", "asked"), [
    ("bench", ["0", "1"], True), ("bench", ["0"], False), ("grade", ["0", "1"], False),
])  # fmt: skip
def test_several_gpus_are_compared_before_they_are_timed(monkeypatch, command, seen, asked):
    monkeypatch.setattr(engines.shared, "found_device", lambda options: "cuda")
    monkeypatch.setattr(gpus, "visible", lambda: seen)
    assert engines.chosen(options(device=None), command, []).job.pace == asked


def test_a_cluster_needs_ray(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["grade", "--engine", "ray"])
    assert ended.value.code == 2
    assert "the package ray is missing" in capsys.readouterr().err
