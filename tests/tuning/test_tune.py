"""The search: what it finds and keeps, and that stopping it changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from common.measure import machine
from common.solutions import discover
from common.tuning import search
from common.tuning.points import SCHEMA
from tests.support.tuning import DEADLINE, DEVICE, SOLUTION, FakeClock, Folder, by_block

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")

# --- what is found --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_fastest_of_each_shape_is_what_the_helper_reads(alice):
    found, clock = alice.write().run()
    assert alice.blocks == {"back": {80: 4, 512: 2}, "turn": {80: 4, 512: 2}}
    assert (alice.saved["schema"], alice.saved["device"]) == (SCHEMA, DEVICE)
    assert alice.saved["versions"] == machine.versions()
    assert len(clock.calls) == 4 * 3, "each configuration of each shape once"
    assert not alice.said
    assert [one.task.direction for one in found] == ["forward", "backward"] * 2
    text = "\n".join(line for one in found for line in one.lines())
    assert "alice/rotate_half turn, 80 tokens of 8 float32 (forward)" in text
    assert 'default 25.00 us, best 10.00 us: {"BLOCK": 4}' in text
    assert "3 measured, 0 skipped" in text

    code = (
        "import torch, types, configs\n"
        f"gpu = types.SimpleNamespace(name={DEVICE!r}, major=9, minor=0)\n"
        "gpu.multi_processor_count = 132\n"
        "torch.cuda.get_device_properties = lambda device: gpu\n"
        "like = types.SimpleNamespace(dtype=torch.float32, device=torch.device('cuda:0'))\n"
        "print(configs.Tuned('turn', {'BLOCK': 1}, [])(70, (8,), like))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=alice.folder, capture_output=True, text=True
    )
    assert ran.stdout.strip() == "{'BLOCK': 4}", ran.stderr
    assert not ran.stderr


def test_what_is_timed_is_one_configuration_beside_the_best_of_the_others(alice):
    """Backward is timed with forward's winner of that shape, the rest with their defaults."""
    _, clock = alice.write().run()
    tried = [
        {(kernel, tokens): config["BLOCK"] for kernel, tokens, *_, config in choices}
        for _, choices in clock.calls
    ]
    assert tried[:3] == [{("turn", 80): 1}, {("turn", 80): 2}, {("turn", 80): 4}]
    assert tried[3:6] == [{("turn", 80): 4, ("back", 80): block} for block in (1, 2, 4)]
    assert [direction for direction, _ in clock.calls] == (["forward"] * 3 + ["backward"] * 3) * 2


def test_each_kernel_gets_configurations_of_its_own(alice):
    """One whose names the other does not know would not run."""
    text = SOLUTION.replace('["BLOCK"]', "[next(iter(kernel.default))]")
    head, tail = text.split("back = ", 1)
    found, _ = alice.write(text=head + "back = " + tail.replace('"BLOCK"', '"REACH"', 2)).run()
    assert alice.saved["kernels"]["back"][0]["config"] == {"REACH": 4}
    assert alice.blocks == {"back": {80: 4, 512: 2}, "turn": {80: 4, 512: 2}}
    assert not any("skipped 1" in line for one in found for line in one.lines())


def test_the_file_is_sorted_and_has_a_line_an_entry(alice):
    alice.write().run()
    lines = [line.strip().rstrip(",") for line in alice.file.read_text().splitlines()]
    entries = [json.loads(line) for line in lines if "tokens" in line]
    assert [entry["tokens"] for entry in entries] == [80, 512] * 2
    assert [line for line in lines if line.endswith("[")] == ['"back": [', '"turn": [']
    assert entries[0] == {
        "tokens": 80, "widths": [8], "dtype": "float32", "config": {"BLOCK": 4},
        "microseconds": 20.0,
    }  # fmt: skip


def test_a_call_without_tokens_is_not_tuned(alice):
    text = SOLUTION.replace("x.numel() // x.shape[-1]", "0")
    found, clock = alice.write(text=text).run()
    assert (found, clock.calls) == ([], [])


@pytest.mark.parametrize(("faster", "block"), [(0.995, 1), (0.985, 2)])
def test_within_a_hundredth_the_earliest_declared_is_taken(alice, faster, block):
    times = {1: 100.0, 2: 100.0 * faster, 4: 100.0 * faster}
    alice.write().run(lambda shape, block: times[block] if shape[0] == "turn" else 0.0)
    assert alice.blocks["turn"] == {80: block, 512: block}


def test_the_default_is_measured_though_the_space_leaves_it_out(alice):
    found, clock = alice.write(space=(2, 2, 4), default=8).run()
    assert len(clock.calls) == 3 + 3 + 3 + 3
    assert [point.config["BLOCK"] for point in found[0].trials] == [8, 2, 4]


# --- stopping and going on ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory, as_on_a_gpu, fork_server):
    """Both files as an uninterrupted search leaves them."""
    folder = Folder(tmp_path_factory.mktemp("whole") / "contributors" / "alice", fork_server)
    folder.write().run()
    return folder.file.read_bytes(), folder.points.read_bytes()


@pytest.mark.parametrize("stops", [[0], [1], [3], [4, 3, 2, 1]])
@pytest.mark.slow
def test_interrupted_and_resumed_gives_the_same_bytes(alice, whole, stops):
    alice.write()
    done = 0
    for stop in stops:
        _, clock = alice.run(stop=stop)
        assert len(clock.calls) == stop
        done += stop
    _, clock = alice.run()
    assert len(clock.calls) == 12 - done, "what was kept is not measured again"
    assert (alice.file.read_bytes(), alice.points.read_bytes()) == whole


@pytest.mark.parametrize("events", [1, 3, 8, 20])
@pytest.mark.slow
def test_leaving_between_two_events_loses_nothing(alice, whole, events, monkeypatch):
    """As Ctrl-C does while the command draws an event."""
    (solution,) = discover(alice.write().folder.parent)
    clock = FakeClock(by_block)
    monkeypatch.setattr(search, "time_forced", clock)
    under_way = search.tune([solution], "cpu", deadline=DEADLINE, server=alice.server)
    for _ in range(events):
        next(under_way)
    under_way.close()
    _, again = alice.run()
    assert len(clock.calls) + len(again.calls) == 12
    assert (alice.file.read_bytes(), alice.points.read_bytes()) == whole


@pytest.mark.slow
def test_a_kill_while_writing_costs_that_line_alone(alice, whole, capsys):
    alice.write().run(stop=5)
    text = alice.points.read_text()
    alice.points.write_text(text[:-9])
    _, clock = alice.run()
    assert "dropped the last line of nvidia-h200.jsonl" in capsys.readouterr().err
    assert len(clock.calls) == 12 - 5 + 1
    assert (alice.file.read_bytes(), alice.points.read_bytes()) == whole


@pytest.mark.slow
def test_a_kill_between_timing_and_grading_costs_no_timing(alice, whole, monkeypatch):
    def killed(problem, worker):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(search, "grade_case", killed)
        alice.write().run(stop=99)
    assert not alice.file.exists()
    _, clock = alice.run()
    assert len(clock.calls) == 12 - 3
    assert (alice.file.read_bytes(), alice.points.read_bytes()) == whole


def test_what_was_found_is_there_before_the_end(alice):
    alice.write().run(stop=4)
    assert alice.blocks == {"turn": {80: 4}}


@pytest.mark.slow
def test_once_complete_nothing_is_measured_again(alice, monkeypatch):
    found, _ = alice.write(space=(1, 2, 4, 100, 107)).run(lambda s, block: 200.0 - block)
    before = alice.file.read_bytes(), alice.points.read_bytes()
    alice.file.unlink()
    monkeypatch.setattr(search, "grade_case", None)
    again, clock = alice.run()
    assert not clock.calls
    assert (alice.file.read_bytes(), alice.points.read_bytes()) == before
    assert [list(one.lines()) for one in again] == [list(one.lines()) for one in found]


@pytest.mark.slow
def test_points_of_other_sources_or_versions_count_no_more(alice, monkeypatch):
    alice.write().run()
    alice.write(text=SOLUTION + "changed = True\n")
    _, clock = alice.run()
    assert len(clock.calls) == 12
    assert "alice/rotate_half or its versions changed" in alice.said[0]
    _, clock = alice.run()
    assert (clock.calls, alice.said) == ([], []), "that is said once"
    monkeypatch.setattr(machine, "versions", lambda: {"torch": "3"})
    _, clock = alice.run()
    assert len(clock.calls) == 12
    assert alice.saved["versions"] == {"torch": "3"}
    assert len(alice.points.read_text().splitlines()) == 3 * (12 + 4), "and nothing is thrown away"


def test_configurations_change_the_solutions_digest_and_not_their_own(alice):
    (solution,) = discover(alice.write().folder.parent)
    digest, sources = solution.digest, solution.source_digest
    alice.run()
    assert solution.digest != digest
    assert solution.source_digest == sources
    (alice.folder / "configs.py").write_text("changed")
    assert solution.source_digest != sources
