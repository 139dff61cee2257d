"""The memory that timed calls take: what a process holds, and when; the recorded peak."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.arena import Arena, shifted, storage_bytes
from common.grading.calls import call_tensors
from common.measure.timed_process import Failed, TimedProcess, is_shifts, lay_calls
from common.ops._draw import draw
from common.sandbox import clock, memory, rotation
from common.sandbox.clock import COLD_CALLS, Clock
from common.sandbox.rotation import Changing, Rotation, TimedCall
from tests.support.asking import workers

HALF = ops.load("rotate_half")
CASE = next(HALF.cases("smoke"))
RESULTS = {("output", 0): torch.empty_like(draw(HALF, CASE, 0, "cpu")[1], device="meta")}

TURNED = """
import torch

def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""


class Worker:
    """A process that answers everything; `asked` holds the requests."""

    solution, pid = SimpleNamespace(peer=False), 0

    def __init__(self, **replies):
        self.asked, self.replies = [], replies

    def arena(self, nbytes):
        return Arena("cpu", nbytes)

    def ask(self, request, **arguments):
        self.asked.append(request)
        if request in ("turn", "run_on"):
            kept = {"call": 1, "shift": 3}
            return {"samples": [1.0] * arguments["rounds"], "kept": kept}
        return self.replies.get(request, {})


def timed(worker, frugal=False):
    laid = lay_calls(HALF, CASE, "cpu", worker, 2, RESULTS)
    return TimedProcess(worker, laid, "forward", frugal=frugal), laid


# --- the harness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [*map(ops.load, ops.names())], ids=lambda op: op.name)
def test_inputs_lie_in_the_arena_alone_and_are_drawn_again(op):
    case = next(op.cases("smoke"))
    laid = lay_calls(op, case, "cpu", Worker(), 3, RESULTS)
    assert len({*laid.seeds}) == 3
    for seed, slots in zip(laid.seeds, laid.inputs, strict=True):
        for name, tensor in call_tensors(*laid.draw(seed)).items():
            assert torch.equal(laid.arena.tensor(slots[name]), tensor)
    assert laid.changed([0, 0, 0]) is None
    for call, slots in zip(laid.calls, laid.inputs, strict=True):
        for name, unit in call["changing"].items():
            memory = laid.arena.bytes_of(slots[name])
            width = getattr(torch, slots[name].dtype).itemsize
            memory.copy_(memory.view(-1, width).roll(-5 * unit, 0).view(-1))
    assert laid.changed([5, 5, 5]) is None
    assert laid.changed([5, 6, 5]) is not None


def test_the_results_of_all_calls_have_one_place():
    laid, bare = (lay_calls(HALF, CASE, "cpu", Worker(), 3, each) for each in (RESULTS, {}))
    (slot,) = laid.results.values()
    assert laid.arena.nbytes - bare.arena.nbytes == slot.end - slot.start


def test_an_input_that_was_changed_is_named():
    worker = Worker(shifts={"shifts": [0, 0]})
    process, laid = timed(worker)
    assert process.changed() is None and "shifts" not in worker.asked, "nothing was timed yet"
    process.turn("solution", "gpu")(1)
    assert process.changed() is None
    laid.arena.tensor(laid.inputs[1]["x"]).view(torch.int32)[-1] ^= 1
    assert process.changed() == "x changed in a timed call"


@pytest.mark.parametrize("said", [None, [0], [0, 0.0], [0, True], [0, "1"]])
def test_shifts_that_are_none_are_tampering(said):
    assert not is_shifts(said, 2)
    process, _ = timed(Worker(shifts={"shifts": said}))
    process.turn("solution", "gpu")(1)
    with pytest.raises(Failed, match="does not say how far"):
        process.changed()


@pytest.mark.parametrize("said", [-1, 1.5, True, "1", 1 << 63])
def test_a_peak_that_is_no_size_is_tampering(said):
    assert timed(Worker(begin_timing={"peak_memory": 5}))[0].peak_memory == 5
    assert timed(Worker())[0].peak_memory is None
    with pytest.raises(Failed, match="no size of memory"):
        timed(Worker(begin_timing={"peak_memory": said}))


@pytest.mark.parametrize("frugal", [False, True])
def test_a_process_gives_its_memory_back_after_each_turn_where_it_is_scarce(frugal):
    worker = Worker()
    process, _ = timed(worker, frugal)
    process.turn("solution", "gpu")(1)
    process.run_on("solution", 1)
    back, ready = ["give_back"] * frugal, ["get_ready"] * frugal
    turns = ["turn", *back, *ready, "run_on", *back]
    assert worker.asked == ["begin_timing", *back, *turns]
    worker.asked.clear()
    process.run_on("dense", 1)
    assert worker.asked == ["get_ready", "run_on", *back], "its memory is there before"


def test_a_frugal_process_answers_as_any_other(fork_server, tmp_path):
    with workers(fork_server, tmp_path) as start:
        process, laid = timed(start(TURNED, "rotate_half"), frugal=True)
        for name in ("solution", "no_grad"):
            assert len(process.turn(name, "host", burst=2)(3)) == 3
        assert process.run_on("solution", 2, renew=True).wall > 0
        assert process.changed() is None
    assert {*process.kept} == {"sample", "no_grad", "run on"}
    for kept in itertools.chain(*process.kept.values()):
        x = laid.draw(kept.seed)[0]["x"]
        x = shifted(x, kept.shift).view(x.dtype).view(x.shape)
        first, second = x.chunk(2, -1)
        assert torch.equal(kept.results["output"], torch.cat((-second, first), -1))


# --- the process that is timed --------------------------------------------------------------------


def clock_of(log, limits=None):
    slots = (torch.zeros(4),)
    call = TimedCall(lambda: log.append("call") or torch.ones(4), [], torch.ones(4))
    return Clock(Rotation([call, call], backward=False, slots=slots), False, limits or {})


@pytest.fixture
def sampled(monkeypatch):
    """Let a sample be a call; return the number of samples so far."""
    taken = []

    def gpu_time(contestant, flush):
        contestant.before()
        contestant.ready()()
        contestant.after()
        taken.append(1)
        return 1.0

    monkeypatch.setattr(clock, "_gpu_time", gpu_time)
    return taken


def test_untimed_calls_come_first_where_the_memory_was_given_back(sampled):
    log = []
    ours = clock_of(log)
    for cold in (False, True, False):
        if cold:
            ours.give_back()
            assert not ours.ours._alive
        log.clear(), sampled.clear()
        ours.turn("solution", "gpu", 3)
        assert (len(sampled), len(log)) == (3, 3 + COLD_CALLS * cold)


def test_no_untimed_call_is_kept(sampled):
    ours = clock_of([])
    ours.give_back()
    ours.get_ready("solution")
    assert ours.ours.delivered() is None


@pytest.mark.parametrize(
    "use",
    [
        lambda ours, name: ours.turn(name, "gpu", 2),
        lambda ours, name: ours.run_on(name, 2, renew=False, run=True, wait=True),
    ],
)
def test_a_limit_has_memory_for_its_own_turns_alone(sampled, use):
    alive, seen = [], []

    def limit(name):
        def make():
            alive.append(name)
            return Freed(alive, name, seen)

        return make

    ours = clock_of([], {"copy": limit("copy"), "dense": limit("dense")})
    for name in ("copy", "copy", "dense", "solution"):
        use(ours, name)
        assert alive == []
    assert seen == ["copy"] * 2 * (2 + COLD_CALLS) + ["dense"] * (2 + COLD_CALLS)
    ours.get_ready("copy")
    assert alive == ["copy"]
    ours.get_ready("dense")
    assert alive == ["dense"]
    ours.give_back()
    assert alive == []


class Freed:
    """A call that leaves the list once it is freed."""

    def __init__(self, alive, name, seen):
        self.alive, self.name, self.seen = alive, name, seen

    def __call__(self):
        assert self.alive == [self.name], "allocated before the other was freed"
        self.seen.append(self.name)

    def __del__(self):
        self.alive.remove(self.name)


# --- the GPU's memory, played by a number ---------------------------------------------------------


class Gpu:
    """The allocator's numbers, which `take` and `free` move."""

    def __init__(self, monkeypatch, total=1000):
        self.total, self.now, self.peak, self.fraction = total, 100, 0, 1.0
        fakes = {
            "is_available": lambda: True,
            "synchronize": lambda: None,
            "reset_peak_memory_stats": self.reset,
            "memory_stats": self.stats,
            "mem_get_info": lambda: (self.total - self.now, self.total),
            "memory_reserved": lambda: self.now,
            "memory_allocated": lambda: self.now,
            "get_per_process_memory_fraction": lambda: self.fraction,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def reset(self):
        self.peak = self.now

    def stats(self):
        return {"requested_bytes.all.current": self.now, "requested_bytes.all.peak": self.peak}

    def take(self, nbytes):
        self.now += nbytes
        self.peak = max(self.peak, self.now)


def rotation_on(gpu, scratch, held, slots=()):
    """A call that takes `scratch` bytes for a while, and holds `held` with its result of 16."""

    def forward():
        gpu.take(scratch)
        gpu.take(-scratch)
        gpu.take(16 + held)
        return torch.zeros(4)

    return Rotation([TimedCall(forward, [], torch.zeros(4))], False, slots=slots)


@pytest.mark.parametrize(
    ("scratch", "held", "peak"), [(0, 0, 0), (50, 0, 34), (0, 7, 7), (10, 7, 7), (30, 7, 14)]
)
def test_the_peak_is_what_a_call_takes_beyond_its_results(monkeypatch, scratch, held, peak):
    gpu = Gpu(monkeypatch)
    ours = rotation_on(gpu, scratch, held)
    gpu.take(500), gpu.take(-500)
    assert rotation.peak_memory(ours) == peak
    assert not ours._alive


def test_a_gradient_that_is_the_upstream_one_takes_nothing(monkeypatch):
    gpu = Gpu(monkeypatch)
    x, upstream = torch.zeros(4, requires_grad=True), torch.zeros(4)

    def forward():
        gpu.take(56)
        return x.clone()

    memory = storage_bytes(upstream).view(-1, 4)
    ours = Rotation([TimedCall(forward, [x], upstream, [Changing(upstream, memory)])], True)
    assert rotation.peak_memory(ours) == 56 - 16


def test_a_cpu_has_no_peak(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ours = Rotation([TimedCall(lambda: torch.zeros(4), [], torch.zeros(4))], False)
    assert rotation.peak_memory(ours) is None


@pytest.mark.parametrize(
    ("total", "scratch", "alive"),
    [(10_000, 0, range(5, 18)), (230, 0, [4]), (180, 0, [2]), (180, 40, [1]), (133, 0, [1])],
)
def test_as_many_results_live_at_once_as_half_of_the_memory_holds(
    monkeypatch, total, scratch, alive
):
    for _ in range(20):
        gpu = Gpu(monkeypatch, total)
        ours = rotation_on(gpu, scratch, 0, slots=(torch.zeros(4),))
        rotation.run_at_once(ours, 17)
        assert len(ours._alive) in alive


def test_the_room_ends_at_the_share_that_a_process_may_take(monkeypatch):
    gpu = Gpu(monkeypatch)
    assert memory.room() == 900
    gpu.fraction = 0.25
    assert memory.room() == 150
    gpu.take(300)
    assert memory.room() == 0
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: gpu.now + 40)
    assert memory.room() == 40, "what torch keeps for later"


def test_what_is_given_back_is_free_for_others(monkeypatch):
    gpu, emptied = Gpu(monkeypatch), []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(gpu.now))
    memory.give_back()
    assert emptied == [100]
