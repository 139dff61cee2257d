"""`tune`: what it finds, writes and says. A table stands for the clock, on a CPU."""

import itertools
import json
from types import SimpleNamespace

import pytest

from common import cli, wire
from common.commands import options, tuning
from common.errors import UserError
from common.grading import sweep as sweeps
from common.grading.device import DeviceMemory
from common.grading.sweep import Sweep
from common.grading.worker import Worker
from common.measure import machine
from common.paths import CONTRIBUTORS
from common.solutions import discover
from common.timed_requests import BeginTiming

DEVICE = {"device": "NVIDIA H200", "compute_capability": "9.0", "multiprocessors": 132}

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
    if block == 101:
        os.abort()
    while block == 105:
        pass
    if block == 106 or os.environ.get("BROKEN"):
        os.environ["BROKEN"] = "yes"  # an illegal access leaves every later call failing
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x2 if block == 107 else -x2, x1), dim=-1)


def rotate_half(x):
    return _Turn.apply(x)
'''
NOTHING = "def rotate_half(x):\n    raise NotImplementedError\n"


def best_of(tokens):
    """4 is the fastest on the small shape and 2 on the other."""
    return 4 if tokens == 80 else 2


@pytest.fixture
def alice(tmp_path, fork_server, monkeypatch):
    """A folder with the helper; `write` adds a solution, `run` tunes what is there."""
    monkeypatch.setattr(machine, "device_fields", lambda device: DEVICE)
    monkeypatch.setattr(machine, "results_folder", lambda device: "nvidia-h200")
    return Folder(tmp_path / "contributors" / "alice", fork_server, monkeypatch)


class Folder:
    def __init__(self, folder, server, monkeypatch):
        self.folder, self.server, self.monkeypatch = folder, server, monkeypatch
        self.file = folder / "configs" / "nvidia-h200.json"
        folder.mkdir(parents=True)
        (folder / "configs.py").write_text((CONTRIBUTORS / "_template" / "configs.py").read_text())

    def write(self, space=(1, 2, 4), default=1, text=SOLUTION, name="rotate_half"):
        (self.folder / f"{name}.py").write_text(text.format(space=tuple(space), default=default))
        return self

    def clock(self, stop=None):
        """Count the timed calls; each makes its call and takes the time of its configuration."""
        counted, asked = itertools.count(1), []
        ask = Worker.ask

        def keep(worker, request):
            asked[:] = request.choices[-1:] if isinstance(request, wire.Tune) else asked
            return ask(worker, request)

        def time_call(worker, staged, direction):
            if next(counted) == stop:
                raise KeyboardInterrupt
            request = BeginTiming(calls=staged.calls, backward=direction == "backward")
            reply = worker.ask(request)
            ((_, _, _, tokens, config),) = asked
            time = 10.0 + 5 * abs(config["BLOCK"] - best_of(tokens))
            return reply if reply.get("verdict") else {"gpu": [time, time + 100, time - 100]}

        self.monkeypatch.setattr(Worker, "ask", keep)
        self.monkeypatch.setattr(tuning, "time_call", time_call)
        return lambda: next(counted) - 1

    def run(self, stop=None, deadline=20.0):
        """Return each shape's lines, the warnings, and the number of timed calls."""
        calls, lines, warnings = self.clock(stop), [], []
        memory = DeviceMemory.of("cpu")
        shown = dict.fromkeys(("total", "done", "doing"), lambda of: None)
        steps = SimpleNamespace(say=warnings.append, **shown)
        with Sweep("cpu", True, deadline, server=self.server, memory=memory) as sweep:
            try:
                lines = tuning.tune(sweep, discover(self.folder.parent), steps)
            except KeyboardInterrupt:
                assert stop
        starts = [at for at, line in enumerate(lines) if not line.startswith(" ")]
        places = itertools.pairwise([*starts, len(lines)])
        shapes = [tuple(lines[at:end]) for at, end in places]
        return shapes, warnings, calls()

    @property
    def saved(self):
        return json.loads(self.file.read_text())

    @property
    def blocks(self):
        """Kernel, then tokens -> BLOCK."""
        kernels = self.saved["kernels"]
        return {k: {e["tokens"]: e["config"]["BLOCK"] for e in kernels[k]} for k in kernels}


def test_the_fastest_of_each_shape_is_written_for_the_helper(alice):
    (solution,) = discover(alice.write().folder.parent)
    digest, sources = solution.digest, solution.source_digest
    lines, warnings, calls = alice.run()
    assert solution.digest != digest and solution.source_digest == sources
    assert alice.blocks == {"back": {80: 4, 512: 2}, "turn": {80: 4, 512: 2}}
    assert calls == 4 * 3, "each configuration of each shape once"
    assert not warnings
    assert {name: alice.saved[name] for name in DEVICE} == DEVICE
    assert alice.saved["versions"] == machine.versions()
    assert alice.saved["kernels"]["back"][0].items() >= {
        "tokens": 80, "widths": [8], "dtype": "float32", "config": {"BLOCK": 4},
        "microseconds": 10.0,
    }.items()  # fmt: skip
    assert lines[0] == (
        "alice/rotate_half turn, 80 tokens of 8 float32 (forward)",
        '    default 25.00 us, best 10.00 us: {"BLOCK": 4}',
        "    3 measured, 0 skipped",
    )


@pytest.mark.parametrize(
    ("times", "index"),
    [((100.0, 99.5, 98.0), 2), ((100.0, 99.5, 99.2), 0), ((None, 2.0, 1.99), 1), ((None,), None)],
)
def test_within_a_hundredth_the_first_declared_is_the_fastest(times, index):
    trials = [tuning.Trial({"n": n}, time, "", "") for n, time in enumerate(times)]
    assert tuning.fastest(trials) == (None if index is None else trials[index])


@pytest.mark.slow
def test_an_interrupted_search_continues_at_its_shape(alice):
    alice.write().run(stop=5)
    assert alice.blocks == {"turn": {80: 4}}
    before = alice.file.read_bytes()
    assert alice.run(stop=1)[2] == 1
    assert alice.file.read_bytes() == before
    assert alice.run()[2] == 9
    assert alice.blocks == {"back": {80: 4, 512: 2}, "turn": {80: 4, 512: 2}}
    assert alice.run() == ([], [], 0)
    alice.write(text=SOLUTION + "changed = True\n")
    assert alice.run()[2] == 12


@pytest.mark.slow
def test_configurations_that_fail_are_skipped_and_counted(alice):
    lines, _, calls = alice.write((1, 100, 101, 105, 106, 2)).run(deadline=1.0)
    assert alice.blocks == {"turn": {80: 2, 512: 2}, "back": {80: 2, 512: 2}}
    assert calls == 4 * 6
    for result in lines:
        assert "    2 measured, 4 skipped" in result
        for verdict in ("COMPILE_ERROR", "CRASHED", "TIMEOUT", "RUNTIME_ERROR"):
            assert any(line.startswith(f"    skipped 1: {verdict}: ") for line in result)


def test_a_default_that_fails_hides_no_other_kernel(alice):
    lines, warnings, _ = alice.write((1, 2), default=100).run()
    assert alice.blocks == {"turn": {80: 2, 512: 2}, "back": {80: 2, 512: 2}}
    assert lines[0][1].startswith("    default COMPILE_ERROR, best ") and not warnings
    lines, warnings, _ = alice.write((100,), default=100).run()
    assert all("no configuration passed" in result[1] for result in lines)
    assert len(warnings) == 2
    assert all("COMPILE_ERROR" in line and "shared memory" in line for line in warnings)


@pytest.mark.slow
@pytest.mark.parametrize("wrong_in", ["turn", "back"])
def test_a_wrong_winner_is_dropped_for_the_next(alice, wrong_in):
    text = SOLUTION.replace("block == 107", f"block == 4 and kernel is {wrong_in}")
    _, warnings, _ = alice.write(text=text).run()
    assert alice.blocks[wrong_in] == {80: 2, 512: 2}
    (line,) = warnings
    assert "dropped {'BLOCK': 4}, which is INCORRECT_NUMERICAL: " in line


# --- what is declared -----------------------------------------------------------------------------


@pytest.mark.slow
def test_solutions_that_share_a_kernel_search_it_once(alice):
    alice.write().write(name="rotate_half_again").write(text=NOTHING, name="rotate_half_plain")
    lines, warnings, calls = alice.run()
    assert (len(lines), calls) == (4, 12)
    assert warnings == ["alice/rotate_half_plain declares no TUNED: there is nothing to search"]
    alice.write(space=(1, 2), name="rotate_half_again")
    with pytest.raises(UserError, match="two kernels named 'turn'"):
        alice.run()


@pytest.mark.parametrize(
    "declared",
    [
        "TUNED = (Tuned('a', default=7, space=[]),)",
        "TUNED = (Tuned('a', default={{'A': 1}}, space=[{{'B': 1}}]),)",
        "TUNED = (turn, Tuned('turn', default={{'A': 1}}, space=[]))",
        "turn.default = {{'A': torch}}",
        "import nothing_of_the_kind",
    ],
)
def test_a_wrong_declaration_is_one_line(alice, declared):
    alice.write(text=SOLUTION + declared)
    with pytest.raises(UserError, match=r"^alice/rotate_half: .*$"):
        alice.run()


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_results(alice, monkeypatch, capsys):
    alice.write().clock()
    monkeypatch.setattr(discover, "__defaults__", (alice.folder.parent,))
    monkeypatch.setattr(options, "device", lambda options: "cuda")
    monkeypatch.delenv("FORCE_COLOR", raising=False)  # nox sets it, and bars would be drawn
    whole = Sweep
    monkeypatch.setattr(
        sweeps, "Sweep", lambda _, quiet, **given: whole("cpu", quiet, server=alice.server, **given)
    )
    with pytest.raises(SystemExit) as ended:
        cli.main(["tune", "alice"])
    captured = capsys.readouterr()
    assert ended.value.code == 0 and not captured.err
    assert captured.out.count("3 measured, 0 skipped") == 4
    assert captured.out.endswith("is in contributors/alice/configs/nvidia-h200.json\n")
