"""The harness's hold on a timed process: its inputs, its requests, and what it says."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.arena import Arena, end_of, lay_out, shifted
from common.grading.execution import call_of
from common.grading.problem import call_tensors
from common.measure.timed_process import (
    KEPT,
    SMALL,
    Failed,
    StagedCalls,
    TimedProcess,
    probe,
    stage_calls,
)
from common.ops._draw import draw
from tests.support.workers import workers

RUNS = 1000
"""With 200, chance alone would fail one run of the tests in 200."""
HALF = ops.load("rotate_half")
CASE = next(HALF.cases("smoke"))
RESULTS = {"output": torch.empty_like(draw(HALF, CASE, 0, "cpu")[1], device="meta")}

TURNED = """
import torch

def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""


class Worker:
    """A process that answers everything; `asked` holds the requests, `directions` theirs."""

    solution, pid = SimpleNamespace(peer=False), 0

    def __init__(self, **replies):
        self.asked, self.directions, self.replies = [], set(), replies

    def arena(self, nbytes):
        return Arena("cpu", nbytes)

    def ask(self, request):
        name = request.__struct_config__.tag
        self.asked.append(name)
        self.directions.add(getattr(request, "backward", None))
        kept = {"kept": {"call": 1, "shift": 3}}
        if name == "throughput_run":
            return kept
        if name == "take_samples":
            samples = dict.fromkeys(request.names, [1.0] * request.rounds)
            return {"samples": samples, "probes": []} | kept | self.replies.get(name, {})
        return self.replies.get(name, {})


def timed(worker, low_memory=False, direction="forward"):
    staged = stage_calls(HALF, CASE, "cpu", worker, 2, RESULTS)
    return TimedProcess(worker, staged, direction, low_memory=low_memory), staged


@pytest.mark.parametrize("op", [*map(ops.load, ops.names())], ids=lambda op: op.name)
def test_inputs_lie_in_the_arena_alone_and_are_drawn_again(op):
    case = next(op.cases("smoke"))
    staged = stage_calls(op, case, "cpu", Worker(), 3, RESULTS)
    assert len({*staged.seeds}) == 3
    for seed, slots in zip(staged.seeds, staged.inputs, strict=True):
        for name, tensor in call_tensors(*staged.draw(seed)).items():
            assert torch.equal(staged.arena.tensor(slots[name]), tensor)
    assert staged.changed([0, 0, 0]) is None
    for call, slots in zip(staged.calls, staged.inputs, strict=True):
        for name, unit in call.changing.items():
            memory = staged.arena.bytes_of(slots[name])
            width = getattr(torch, slots[name].dtype).itemsize
            memory.copy_(memory.view(-1, width).roll(-5 * unit, 0).view(-1))
    assert staged.changed([5, 5, 5]) is None
    assert staged.changed([5, 6, 5]) is not None


def test_the_results_of_all_calls_have_one_place():
    staged, bare = (stage_calls(HALF, CASE, "cpu", Worker(), 3, each) for each in (RESULTS, {}))
    (slot,) = staged.results.values()
    assert staged.arena.nbytes - bare.arena.nbytes == end_of(slot) - slot.start


def test_an_input_that_was_changed_is_named():
    worker = Worker(shifts={"shifts": [0, 0]})
    process, staged = timed(worker)
    assert process.changed() is None and "shifts" not in worker.asked, "nothing was timed yet"
    process.sampler("solution", "gpu")(1)
    assert process.changed() is None
    staged.arena.tensor(staged.inputs[1]["x"]).view(torch.int32)[-1] ^= 1
    assert process.changed() == "x changed in a timed call"


@pytest.mark.parametrize(
    ("name", "changing"),
    [
        ("rope", {"t": 1, "upstream": 1, "freqs": 16}),
        ("masked_linear", {"x": 1, "w_v": 1, "w_t": 1, "mask": 1, "upstream": 1}),
    ],
)
def test_every_input_changes_and_rows_stay_whole(name, changing):
    op = ops.load(name)
    arguments, grad_output = draw(op, next(op.cases("smoke")), 0, "cpu")
    slots = lay_out(call_tensors(arguments, grad_output).items())
    assert call_of(op, arguments, slots).changing == changing


# --- its requests ---------------------------------------------------------------------------------


SOLUTIONS_TURN = ("take_samples", lambda process: process.sampler("solution", "gpu")(1))
ITS_RUN = ("throughput_run", lambda process: process.throughput_run("solution", 1))
NO_WAIT = ("throughput_run", lambda process: process.throughput_run("solution", 1, wait=False))
EAGERS_TURNS = (
    "take_samples",
    lambda process: process.sample_together(
        ["copy", "solution"], clock="gpu", rounds=2, burst=1, look=1
    ),
)
LIMITS_RUN = ("throughput_run", lambda process: process.throughput_run("dense", 1))


@pytest.mark.parametrize(
    ("several", "get_ready"),
    [
        ([SOLUTIONS_TURN, ITS_RUN, ITS_RUN], []),
        ([SOLUTIONS_TURN, NO_WAIT, ITS_RUN], [2]),
        ([EAGERS_TURNS, ITS_RUN, LIMITS_RUN], [2]),
        ([LIMITS_RUN], [0]),
    ],
)
@pytest.mark.parametrize("low_memory", [False, True])
def test_a_long_run_begins_with_what_is_ready(several, get_ready, low_memory):
    """As what was timed last is; where memory is scarce it was given back after each turn."""
    worker = Worker()
    process, _ = timed(worker, low_memory, "backward")
    expected = ["begin_timing", *["give_back"] * low_memory]
    for index, (name, ask) in enumerate(several):
        ask(process)
        ready = index in get_ready or (low_memory and name == "throughput_run")
        expected += [*["get_ready"] * ready, name, *["give_back"] * low_memory]
    assert worker.asked == expected
    process.capture()
    assert worker.directions == {True}, "each request says the direction whose clock it means"


def test_a_frugal_process_answers_as_any_other(fork_server, tmp_path):
    with workers(fork_server, tmp_path) as start:
        process, staged = timed(start(TURNED, "rotate_half"), low_memory=True)
        for name in ("solution", "no_grad"):
            assert len(process.sampler(name, "host", burst=2)(3)) == 3
        assert process.throughput_run("solution", 2, renew=True).wall > 0
        assert process.changed() is None
    assert {*process.kept} == {"sample", "no_grad", "throughput run"}
    for kept in itertools.chain(*process.kept.values()):
        x = staged.draw(kept.seed)[0]["x"]
        x = shifted(x, kept.shift).view(x.dtype).view(x.shape)
        first, second = x.chunk(2, -1)
        assert torch.equal(kept.results["output"], torch.cat((-second, first), -1))


# --- what it says ---------------------------------------------------------------------------------


class Memory:
    """An arena whose slots all hold the number of the turn."""

    turn = 0

    def tensor(self, slot):
        return torch.tensor(float(self.turn))


@pytest.mark.parametrize(("nbytes", "most"), [(SMALL, KEPT), (SMALL + 1, 1)])
def test_of_small_results_several_turns_are_kept_and_each_may_be(nbytes, most):
    kept, slots = Counter(), {"output": SimpleNamespace(nbytes=nbytes)}
    for _ in range(RUNS):
        memory, worker = Memory(), SimpleNamespace(solution=SimpleNamespace(peer=True))
        calls = [SimpleNamespace(changing={})]
        staged = StagedCalls(
            draw=None, arena=memory, seeds=[3], inputs=[], results=slots, calls=calls
        )
        process = TimedProcess.__new__(TimedProcess)
        process._staged, process._worker, process.low_memory = staged, worker, False
        process.kept, process._rounds_seen = {}, {}
        for memory.turn in range(6):
            process._keep("sample", {"kept": {"call": 0, "shift": 1}})
        found = [int(each.results["output"]) for each in process.kept["sample"]]
        assert len(found) == len({*found}) == most
        kept.update(found)
    assert {*kept} == {*range(6)}
    assert min(kept.values()) > RUNS * most / 6 / 2, "each turn has the same chance"


@pytest.mark.parametrize("said", [None, [0], [0, 0.5], [0, True], [0, "1"]])
def test_shifts_that_are_none_are_tampering(said):
    process, _ = timed(Worker(shifts={"shifts": said}))
    process.sampler("solution", "gpu")(1)
    with pytest.raises(Failed, match="does not say how far"):
        process.changed()


@pytest.mark.parametrize("said", [-1, 1.5, True, "1", 1 << 63])
def test_a_peak_that_is_no_size_is_tampering(said):
    assert timed(Worker(begin_timing={"peak_memory": 5}))[0].peak_memory == 5
    assert timed(Worker())[0].peak_memory is None
    with pytest.raises(Failed, match="no number of bytes"):
        timed(Worker(begin_timing={"peak_memory": said}))


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "samples", [[NAN, 1.0], [INF, 1.0], [-1.0, 1.0], ["1", 1.0], [0.0, 1.0], [1.0], [], None, 1.0]
)
def test_what_is_no_sample_is_tampering(samples):
    worker = Worker(take_samples={"samples": {"solution": samples}}, probe={"samples": samples})
    with pytest.raises(Failed, match="no list of the samples") as failed:
        timed(worker)[0].sampler("solution", "gpu")(2)
    assert failed.value.verdict == "TAMPERED"
    with pytest.raises(Failed, match="the probe has no samples") as failed:
        probe(worker, "gpu", 2)
    assert failed.value.verdict == "CRASHED"
    for said in (samples, {"eager": [1.0, 1.0]}, {}):
        with pytest.raises(Failed, match="no list of the samples"):
            timed(Worker(take_samples={"samples": said}))[0].sampler("solution", "gpu")(2)
    right = Worker(take_samples={"samples": {"solution": [1.5, 2.0]}})
    assert timed(right)[0].sampler("solution", "gpu")(2) == [1.5, 2.0]


@pytest.mark.parametrize("kept", [{"call": 2, "shift": 1}, {"call": 0, "shift": None}, {}, None, 1])
def test_what_names_no_call_is_tampering(kept):
    with pytest.raises(Failed, match="it names no call") as failed:
        timed(Worker(take_samples={"kept": kept}))[0].sampler("solution", "gpu")(2)
    assert failed.value.verdict == "TAMPERED"
