"""The search: what it finds and keeps, what it skips, and that stopping it changes nothing.

The clock is a fake one, so that all runs on a CPU: each configuration makes its call in the
solution's own process and takes the time that a table has for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from common import cli
from common.errors import UserError
from common.grading.fork_server import ForkServer
from common.grading.worker import LIVES
from common.measure import machine
from common.paths import CONTRIBUTORS, ROOT
from common.solutions import discover
from common.tuning import search
from common.tuning.points import SCHEMA, Trials, fastest
from common.tuning.search import Watcher

DEVICE, FILE = "NVIDIA H200", "nvidia-h200.jsonl"
DEADLINE = 20.0

# BLOCK says what becomes of a call: below 100 it is right, and from there on it is as named.
SOLUTION = '''"""x turned in plain torch, as a configuration has it"""
import os

import torch
from configs import Tuned
from triton.runtime.errors import OutOfResources

SPACE = {space}
turn = Tuned("turn", default={{"BLOCK": {default}}}, space=[{{"BLOCK": b}} for b in SPACE])
back = Tuned("back", default={{"BLOCK": 1}}, space=[{{"BLOCK": b}} for b in SPACE])
TUNED = (turn, back)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _run(turn, x)

    @staticmethod
    def backward(ctx, grad):
        return -_run(back, grad)


def _run(kernel, x):
    block = kernel(x.numel() // x.shape[-1], widths=(x.shape[-1],), like=x)["BLOCK"]
    if block == 100:
        raise OutOfResources(300_000, 232_448, "shared memory")
    if 101 <= block <= 104:
        os.abort()
    while block == 105:
        pass
    if block == 106:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x2 if block == 107 else -x2, x1), dim=-1)


def rotate_half(x):
    return _Turn.apply(x)
'''


def block_of(config):
    (block,) = config.values()
    return block


class FakeClock:
    """Microseconds by configuration: what each lookup of the call adds; `stop` interrupts."""

    def __init__(self, times, stop=None):
        self.times, self.stop, self.calls = times, stop, []

    def __call__(self, worker, calls, direction, choices):
        if len(self.calls) == self.stop:
            raise KeyboardInterrupt
        self.calls.append((direction, choices))
        # forward alone, as a clock would have it: nothing takes a gradient
        call = calls[0] if direction == "backward" else calls[0] | {"differentiable": []}
        reply = worker.call("lookups", call=call, choices=choices)
        if reply.get("verdict"):
            return reply
        chosen = {json.dumps(choice[:4]): block_of(choice[4]) for choice in choices}
        due = [shape for shapes in reply["asked"].values() for shape in shapes]
        total = sum(self.times(shape, chosen.get(json.dumps(shape), 1)) for shape in due)
        return {"gpu": [total, total + 100, total - 100]}


def by_block(shape, block):
    """4 is the fastest on the small one and 2 on the other."""
    best = 4 if shape[1] == 64 else 2
    return 10.0 + 5 * abs(block - best)


@pytest.fixture(scope="module")
def module_patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module", autouse=True)
def as_on_a_gpu(module_patch):
    """The files are named as on a GPU; and one fork server does for all, which saves minutes."""
    module_patch.setattr(machine, "device_name", lambda device: DEVICE)
    module_patch.setattr(machine, "results_folder", lambda device: FILE.removesuffix(".jsonl"))
    server = ForkServer("cpu")
    end = server.close
    server.close = lambda: None
    module_patch.setattr("common.grading.sweep.ForkServer", lambda device, quiet: server)
    yield
    end()


@pytest.fixture
def alice(tmp_path):
    """A folder with the helper in it."""
    return Folder(tmp_path / "contributors" / "alice")


class Folder:
    """`write` adds a solution, `run` tunes what is there."""

    def __init__(self, folder):
        self.folder = folder
        self.points = folder / "configs" / FILE
        self.file = self.points.with_suffix(".json")
        self.said: list[str] = []
        folder.mkdir(parents=True)
        helper = (CONTRIBUTORS / "_template" / "configs.py").read_text()
        (folder / "configs.py").write_text(helper)

    def write(self, space=(1, 2, 4), default=1, text=SOLUTION, name="rotate_half"):
        (self.folder / f"{name}.py").write_text(text.format(space=tuple(space), default=default))
        return self

    def run(self, times=by_block, stop=None, only=None, deadline=DEADLINE):
        """What was found, and the clock that was asked."""
        self.said.clear()
        clock = FakeClock(times, stop)
        chosen = [s for s in discover(self.folder.parent) if only in (None, s.path.stem)]
        try:
            found = search.tune(chosen, "cpu", Watcher(say=self.said.append), clock, deadline)
        except KeyboardInterrupt:
            assert stop is not None
            return None, clock
        return found, clock

    @property
    def saved(self):
        return json.loads(self.file.read_text())

    @property
    def blocks(self):
        """Kernel, then tokens -> BLOCK."""
        kernels = self.saved["kernels"]
        return {k: {e["tokens"]: block_of(e["config"]) for e in kernels[k]} for k in kernels}


# --- what is found --------------------------------------------------------------------------------


def test_the_fastest_of_each_shape_is_what_the_helper_reads(alice):
    found, clock = alice.write().run()
    assert alice.blocks == {"back": {64: 4, 512: 2}, "turn": {64: 4, 512: 2}}
    assert (alice.saved["schema"], alice.saved["device"]) == (SCHEMA, DEVICE)
    assert alice.saved["versions"] == machine.versions()
    assert len(clock.calls) == 4 * 3, "each configuration of each shape once"
    assert not alice.said
    assert [one.spot.direction for one in found] == ["forward", "backward"] * 2
    text = "\n".join(line for one in found for line in one.lines())
    assert "alice/rotate_half turn, 64 tokens of 8 float32 (forward)" in text
    assert 'default 25.00 us, best 10.00 us: {"BLOCK": 4}' in text
    assert "3 measured, 0 skipped" in text

    code = (
        "import torch, types, configs\n"
        f"torch.cuda.get_device_name = lambda device: {DEVICE!r}\n"
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
    assert tried[:3] == [{("turn", 64): 1}, {("turn", 64): 2}, {("turn", 64): 4}]
    assert tried[3:6] == [{("turn", 64): 4, ("back", 64): block} for block in (1, 2, 4)]
    assert [direction for direction, _ in clock.calls] == (["forward"] * 3 + ["backward"] * 3) * 2


def test_each_kernel_gets_configurations_of_its_own(alice):
    """One whose names the other does not know would not run."""
    text = SOLUTION.replace('["BLOCK"]', "[next(iter(kernel.default))]")
    head, tail = text.split("back = ", 1)
    found, _ = alice.write(text=head + "back = " + tail.replace('"BLOCK"', '"REACH"', 2)).run()
    assert alice.saved["kernels"]["back"][0]["config"] == {"REACH": 4}
    assert alice.blocks == {"back": {64: 4, 512: 2}, "turn": {64: 4, 512: 2}}
    assert not any("skipped 1" in line for one in found for line in one.lines())


def test_the_file_is_sorted_and_has_a_line_an_entry(alice):
    alice.write().run()
    lines = [line.strip().rstrip(",") for line in alice.file.read_text().splitlines()]
    entries = [json.loads(line) for line in lines if "tokens" in line]
    assert [entry["tokens"] for entry in entries] == [64, 512] * 2
    assert [line for line in lines if line.endswith("[")] == ['"back": [', '"turn": [']
    assert entries[0] == {
        "tokens": 64, "widths": [8], "dtype": "float32", "config": {"BLOCK": 4},
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
    assert alice.blocks["turn"] == {64: block, 512: block}


def test_of_nothing_timed_nothing_is_fastest():
    assert fastest([]) is None


def test_the_default_is_measured_though_the_space_leaves_it_out(alice):
    found, clock = alice.write(space=(2, 2, 4), default=8).run()
    assert len(clock.calls) == 3 + 3 + 3 + 3
    assert [point.config["BLOCK"] for point in found[0].points] == [8, 2, 4]


# --- stopping and going on ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Both files as a search leaves them that nobody stops."""
    folder = Folder(tmp_path_factory.mktemp("whole") / "contributors" / "alice")
    folder.write().run()
    return folder.file.read_bytes(), folder.points.read_bytes()


@pytest.mark.parametrize("stops", [[0], [1], [3], [4, 3, 2, 1]])
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


def test_a_kill_while_writing_costs_that_line_alone(alice, whole, capsys):
    alice.write().run(stop=5)
    text = alice.points.read_text()
    alice.points.write_text(text[:-9])
    _, clock = alice.run()
    assert "dropped the last line of nvidia-h200.jsonl" in capsys.readouterr().err
    assert len(clock.calls) == 12 - 5 + 1
    assert (alice.file.read_bytes(), alice.points.read_bytes()) == whole


def test_a_kill_between_timing_and_grading_costs_no_timing(alice, whole, monkeypatch):
    def killed(problem, worker):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(search, "grade", killed)
        alice.write().run(stop=99)
    assert not alice.file.exists()
    _, clock = alice.run()
    assert len(clock.calls) == 12 - 3
    assert (alice.file.read_bytes(), alice.points.read_bytes()) == whole


def test_what_was_found_is_there_before_the_end(alice):
    alice.write().run(stop=4)
    assert alice.blocks == {"turn": {64: 4}}


def test_once_complete_nothing_is_measured_again(alice, monkeypatch):
    found, _ = alice.write(space=(1, 2, 4, 100, 107)).run(lambda s, block: 200.0 - block)
    before = alice.file.read_bytes(), alice.points.read_bytes()
    alice.file.unlink()
    monkeypatch.setattr(search, "grade", None)
    again, clock = alice.run()
    assert not clock.calls
    assert (alice.file.read_bytes(), alice.points.read_bytes()) == before
    assert [list(one.lines()) for one in again] == [list(one.lines()) for one in found]


def test_points_of_other_sources_or_versions_count_no_more(alice, monkeypatch):
    alice.write().run()
    alice.write(text=SOLUTION + "# changed\n")
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


# --- what fails -----------------------------------------------------------------------------------


def test_what_fails_is_skipped_and_counted(alice):
    """Among them more crashes than a graded solution has lives, and one that never ends."""
    space = (1, 100, 101, 102, 103, 104, 105, 106, 2)
    assert LIVES < 4
    found, clock = alice.write(space).run(deadline=2.0)
    assert alice.blocks == {"turn": {64: 2, 512: 2}, "back": {64: 2, 512: 2}}
    assert len(clock.calls) == 4 * len(space)
    for one in found:
        failed = [point for point in one.points if point.microseconds is None]
        assert [point.verdict for point in failed] == [
            "COMPILE_ERROR", *["CRASHED"] * 4, "TIMEOUT", "RUNTIME_ERROR",
        ]  # fmt: skip
        lines = list(one.lines())
        assert "    2 measured, 7 skipped" in lines
        assert any(line.startswith("    skipped 4: CRASHED: ") for line in lines)
        assert any("skipped 1: COMPILE_ERROR: " in x and "shared memory" in x for x in lines)


def test_an_error_that_may_have_broken_the_device_ends_the_process(alice, monkeypatch):
    """An illegal access leaves every later call of its process failing."""
    condition = "if block == 106 or os.environ.get('BROKEN')"
    broken = SOLUTION.replace("if block == 106", condition).replace(
        "raise RuntimeError", "os.environ['BROKEN'] = 'yes'; raise RuntimeError"
    )
    found, _ = alice.write((1, 106, 2), text=broken).run()
    assert [p.verdict for p in found[0].points] == ["PASSED", "RUNTIME_ERROR", "PASSED"]
    # in the call that shows what is asked for, backward's default breaks what forward is timed in
    broken = broken.replace('"back", default={{"BLOCK": 1}}', '"back", default={{"BLOCK": 106}}')
    found, _ = alice.write((1, 2), text=broken).run()
    assert [p.verdict for p in found[0].points] == ["PASSED"] * 2


def test_a_default_that_fails_hides_no_kernel_behind_it(alice):
    """What backward asks for shows once forward has something that works."""
    found, _ = alice.write((1, 2), default=100).run()
    assert alice.blocks == {"turn": {64: 2, 512: 2}, "back": {64: 2, 512: 2}}
    assert "    default COMPILE_ERROR, best 20.00 us" in list(found[0].lines())[1]
    assert not alice.said


def test_a_case_whose_call_fails_whatever_is_chosen_is_said(alice):
    found, _ = alice.write((100,), default=100).run()
    assert [one.winner for one in found] == [None, None]
    assert alice.saved["kernels"] == {}
    assert "no configuration passed" in list(found[0].lines())[1]
    assert len(alice.said) == 2
    assert all("COMPILE_ERROR" in line and "shared memory" in line for line in alice.said)


def test_a_wrong_winner_is_dropped_and_the_next_takes_its_place(alice):
    times = {1: 30.0, 2: 20.0, 107: 10.0}
    found, _ = alice.write((1, 2, 107)).run(lambda shape, block: times[block])
    assert alice.blocks == {"turn": {64: 2, 512: 2}, "back": {64: 2, 512: 2}}
    assert len(alice.said) == 4
    for line in alice.said:
        assert "dropped {'BLOCK': 107}, which is INCORRECT_NUMERICAL: " in line
    assert [one.winner.config["BLOCK"] for one in found] == [2, 2, 2, 2]


def test_a_winner_is_graded_in_each_direction_that_asks_for_it(alice):
    """Right in forward and wrong in backward, which looks up the same shape."""
    text = SOLUTION.replace("return -_run(back, grad)", "return _wrong(_run(turn, grad))")
    text += """

def _wrong(grad):
    forced = [c["BLOCK"] for c in (turn.forced or {{}}).values()]
    return grad if 2 in forced else -grad
"""
    _, clock = alice.write((1, 2), text=text).run(lambda shape, block: 30.0 - block)
    assert alice.blocks == {"turn": {64: 1, 512: 1}}
    assert {direction for direction, _ in clock.calls} == {"forward"}
    assert all("INCORRECT_NUMERICAL" in line for line in alice.said)


# --- what is declared -----------------------------------------------------------------------------

NOTHING = "def rotate_half(x):\n    raise NotImplementedError\n"


def test_a_solution_that_declares_nothing_is_told_so(alice):
    found, clock = alice.write(text=NOTHING).run()
    assert found is None
    assert alice.said == ["alice/rotate_half declares no TUNED: there is nothing to search"]
    assert not clock.calls
    assert not (alice.folder / "configs").exists()


def test_it_hinders_no_other(alice):
    found, _ = alice.write(text=NOTHING).write(name="rotate_half_again").run()
    assert {one.spot.solution for one in found} == {"alice/rotate_half_again"}


def test_what_does_not_import_is_a_fault(alice):
    alice.write(text="import nothing_of_the_kind\n")
    with pytest.raises(UserError, match="alice/rotate_half: COMPILE_ERROR: does not import"):
        alice.run()


@pytest.mark.parametrize(
    "declared",
    [
        "TUNED = (Tuned('a', default=7, space=[]),)",
        "TUNED = (Tuned('a', default={{'A': 1}}, space=[{{'B': 1}}]),)",
        "TUNED = (Tuned('a', default={{'A': 1}}, space=[7]),)",
        "TUNED = (turn, Tuned('turn', default={{'A': 1}}, space=[]))",
    ],
)
def test_what_is_declared_wrongly_is_a_fault(alice, declared):
    alice.write(text=SOLUTION + declared)
    with pytest.raises(UserError) as caught:
        alice.run()
    assert "alice" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("declared", ["TUNED = (7,)", "TUNED = 7", "turn.default = {{'A': torch}}"])
def test_what_is_no_declaration_at_all_is_a_fault(alice, declared):
    alice.write(text=SOLUTION + declared)
    with pytest.raises(UserError, match=r"alice/rotate_half: RUNTIME_ERROR: (Attribute|Type)Error"):
        alice.run()


def test_a_kernel_that_two_solutions_share_is_searched_once(alice):
    shared = SOLUTION.replace('"""x turned', '"""another, which turned')
    alice.write().write(text=shared, name="rotate_half_again")
    found, clock = alice.run()
    assert len(clock.calls) == 12
    assert {one.spot.solution for one in found} == {"alice/rotate_half"}
    before = alice.file.read_bytes()
    alice.file.unlink()
    found, clock = alice.run(only="rotate_half_again")
    assert (found, clock.calls) == ([], [])
    assert alice.file.read_bytes() == before


def test_two_kernels_of_one_name_are_a_fault(alice):
    alice.write().write(space=(1, 2), name="rotate_half_again")
    with pytest.raises(UserError, match="two kernels named 'turn'"):
        alice.run()


# --- the points -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"schema": SCHEMA + 1},
        {"kind": "guessed"},
        {"microseconds": None},
        {"tokens": "many"},
        {"unheard": "of"},
        {"config": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_line_that_is_no_point_is_a_fault_that_names_it(alice, change):
    alice.write().run(stop=2)
    first, second = alice.points.read_text().splitlines()
    alice.points.write_text(f"{first}\n{json.dumps(json.loads(second) | change)}\n")
    with pytest.raises(UserError, match="line 2 is no record of schema") as caught:
        alice.run()
    assert "run tune" in str(caught.value)


def test_two_searches_do_not_write_into_one_another(alice):
    alice.write().run(stop=1)
    first = Trials(alice.points, DEVICE, {}, {})
    with pytest.raises(UserError, match="another run is writing"):
        alice.run()
    first.close()


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(alice, monkeypatch):
    """`study tune alice`, as if a GPU were here and its clock were the fake one."""
    monkeypatch.setattr("common.solutions.CONTRIBUTORS", alice.folder.parent)
    monkeypatch.setattr(discover, "__defaults__", (alice.folder.parent,))
    monkeypatch.setattr(cli, "_device", lambda options: "cuda")
    monkeypatch.delenv("FORCE_COLOR", raising=False)  # nox sets it, and bars would be drawn

    def study(*arguments, stop=None):
        whole = search.tune

        def faked(chosen, device, watcher, quiet):
            assert device == "cuda"
            return whole(chosen, "cpu", watcher, FakeClock(by_block, stop), DEADLINE, quiet)

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
    assert "the same command goes on from it" in line
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
def test_what_cannot_be_tuned_is_one_line(arguments, says):
    ran = subprocess.run(
        [sys.executable, "-m", "common", "tune", *arguments.split()],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    (line,) = ran.stderr.splitlines()
    assert (ran.returncode, ran.stdout) == (2, "")
    assert line.startswith("study: ")
    assert says in line
