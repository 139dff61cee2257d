"""`study tune`: what it prints, and the lines of its file that it refuses."""

from __future__ import annotations

import json

import pytest

from common import cli
from common.commands import options
from common.errors import UserError
from common.paths import CONTRIBUTORS
from common.solutions import discover
from common.tuning import search
from common.tuning.points import SCHEMA, Trials
from tests.support.study import one_line
from tests.support.tuning import DEADLINE, DEVICE, NOTHING, FakeClock, by_block

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")

# --- the points -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": SCHEMA - 1}, "line 2 is no record of schema.*run tune"),
        ({"schema": SCHEMA + 1}, f"line 2 has schema {SCHEMA + 1}.*and keep the file"),
        ({"kind": "guessed"}, "line 2 is no record of schema.*run tune"),
        ({"microseconds": None}, "line 2 is no record of schema.*run tune"),
        ({"unheard": "of"}, "line 2 is no record of schema.*run tune"),
    ],
    ids=str,
)
def test_a_line_that_is_no_point_is_a_fault_that_names_it(alice, change, says):
    alice.write().run(stop=2)
    first, second = alice.points.read_text().splitlines()
    alice.points.write_text(f"{first}\n{json.dumps(json.loads(second) | change)}\n")
    with pytest.raises(UserError, match=says):
        alice.run()


def test_two_searches_do_not_write_into_one_another(alice):
    alice.write().run(stop=1)
    first = Trials(alice.points, {"device": DEVICE}, {}, {})
    with pytest.raises(UserError, match="another run is writing"):
        alice.run()
    first.close()


@pytest.mark.parametrize(
    "file", sorted(CONTRIBUTORS.glob("*/configs/*.jsonl")), ids=lambda f: f.parts[-3]
)
def test_the_committed_trials_make_the_committed_file(tmp_path, file):
    """Read by Trials as they are, and drawn byte for byte."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    sources = {line["solution"]: line["sources"] for line in lines}
    committed = file.with_suffix(".json")
    saved = json.loads(committed.read_text())
    copy = tmp_path / file.name
    copy.write_bytes(file.read_bytes())
    known = ("device", "compute_capability", "multiprocessors")
    device = {name: saved[name] for name in known if name in saved}
    trials = Trials(copy, device, sources, saved["versions"])
    trials.write()
    trials.close()
    assert copy.with_suffix(".json").read_bytes() == committed.read_bytes()
    assert copy.read_bytes() == file.read_bytes()


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(alice, monkeypatch):
    """`study tune alice`, as if a GPU were here and its clock were the fake one."""
    monkeypatch.setattr("common.solutions.CONTRIBUTORS", alice.folder.parent)
    monkeypatch.setattr(discover, "__defaults__", (alice.folder.parent,))
    monkeypatch.setattr(options, "device", lambda options: "cuda")
    monkeypatch.delenv("FORCE_COLOR", raising=False)  # nox sets it, and bars would be drawn
    whole = search.tune

    def study(*arguments, stop=None):
        def faked(chosen, device, quiet, memory):
            assert memory is None
            assert device == "cuda"
            clock = FakeClock(by_block, stop)
            patch.setattr(search, "time_forced", clock)
            return whole(chosen, "cpu", deadline=DEADLINE, quiet=quiet, server=alice.server)

        with monkeypatch.context() as patch:
            patch.setattr(search, "tune", faked)
            with pytest.raises(SystemExit) as ended:
                cli.main(["tune", *arguments])
        return ended.value.code

    return study


def test_tune_says_what_it_found_and_where(on_a_gpu, alice, capsys):
    alice.write()
    assert on_a_gpu("alice") == 0
    captured = capsys.readouterr()
    assert captured.out.count("3 measured, 0 skipped") == 4
    assert captured.out.endswith("is in contributors/alice/configs/nvidia-h200.json\n")
    assert not captured.err


def test_an_interrupted_tune_says_how_to_go_on(on_a_gpu, alice, capsys):
    alice.write()
    assert on_a_gpu("alice", stop=2) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert "kept" in line
    assert "run the same command to continue" in line
    assert on_a_gpu("alice") == 0


def test_tune_tells_who_declares_nothing(on_a_gpu, alice, capsys):
    alice.write(text=NOTHING)
    assert on_a_gpu("alice") == 0
    captured = capsys.readouterr()
    assert captured.err == "alice/rotate_half declares no TUNED: there is nothing to search\n"
    assert not captured.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("house", "tune needs a GPU: without one nothing is timed"),
        ("house --device cpu", "tune needs a GPU: without one nothing is timed"),
        ("house --device cuda", "no GPU"),
        ("nobody", "nobody"),
        ("", "HANDLE"),
        ("house --op ropes", "ropes"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(study, arguments, says):
    ran = study("tune", *arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert says in one_line(ran)
