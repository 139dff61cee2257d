"""The harness's hold on a timed process: its inputs, its requests, and what it reports."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.arena import Arena, elements_of, lay_out
from common.grading.execution import call_of
from common.grading.problem import call_tensors
from common.measure import timed_process
from common.measure.timed_process import KEPT, TimedProcess, ask, stage_calls
from common.ops._draw import draw
from common.timed_requests import TakeSamples
from common.verdicts import Failure
from tests.support import workers

RUNS = 1000
"""With 200, chance alone would fail one run of the tests in 200."""
HALF = ops.load("rotate_half")
CASE = next(HALF.cases("smoke"))
RESULTS = {"output": torch.empty_like(draw(HALF, CASE, 0, "cpu")[1]["upstream"], device="meta")}


class Worker:
    """A process with its own arena that answers each type of request with these replies."""

    solution, pid = SimpleNamespace(peer=False), 0

    def __init__(self, **replies):
        self.replies = {"run_calls": {}, "begin_timing": {}} | replies

    def arena(self, nbytes):
        return Arena("cpu", nbytes)

    def ask(self, request):
        return self.replies[request.__struct_config__.tag]


SAMPLED = {"samples": {"solution": [1.5, 2.0]}, "kept": {"call": 1, "shift": 0}, "shifts": [0, 0]}


def timed(worker, direction="forward"):
    staged = stage_calls(HALF, CASE, "cpu", worker, 2, RESULTS)
    return TimedProcess(worker, staged, direction), staged


def sampled(**fields):
    """Take two samples of a process whose report has these fields."""
    process, _ = timed(Worker(take_samples=SAMPLED | fields))
    return process.sampler("solution", "gpu")(2)


# --- the inputs -----------------------------------------------------------------------------------


def test_an_input_that_was_changed_is_named():
    process, staged = timed(Worker(take_samples=SAMPLED | {"shifts": [5, 5]}))
    for call in staged.calls:
        for name, unit in call.changing.items():
            elements = staged.arena.elements(call.slots[name])
            elements.copy_(elements.roll(-5 * unit))
    sample = process.sampler("solution", "gpu")
    sample(2)
    for call in staged.calls:
        staged.arena.tensor(call.slots["x"]).view(torch.int32)[-1] ^= 1
    with pytest.raises(Failure, match="x changed in a timed call") as failed:
        sample(2)
    assert failed.value.verdict == "MUTATED_INPUT"


@pytest.mark.parametrize(
    ("name", "changing"),
    [
        ("rope", {"t": 1, "upstream": 1, "freqs": 16}),
        ("masked_linear", {"x": 1, "w_v": 1, "w_t": 1, "mask": 1, "upstream": 1}),
    ],
)
def test_every_input_changes_and_rows_stay_whole(name, changing):
    op = ops.load(name)
    arguments, upstream = draw(op, next(op.cases("smoke")), 0, "cpu")
    slots = lay_out(call_tensors(arguments, upstream).items())
    assert call_of(op, arguments, slots).changing == changing


# --- the results that are kept --------------------------------------------------------------------


def test_kept_results_are_those_of_the_inputs_at_their_call(worker):
    process, staged = timed(worker(workers.HALF.format("pass"), "rotate_half"))
    assert len(process.sampler("solution", "host", burst=2)(3)["solution"]) == 3
    assert process.run("solution", 2, renew=True) > 0
    assert not process.ready("graph"), "there is no GPU"
    assert {*process.kept} == {"solution", "long run"}
    for shift, results in itertools.chain(*process.kept.values()):
        x = elements_of(staged.drawn[0]["x"]).roll(-shift).view(torch.float32)
        first, second = x.view_as(staged.drawn[0]["x"]).chunk(2, -1)
        assert torch.equal(results["output"], torch.cat((-second, first), -1))


@pytest.mark.parametrize(("small", "most"), [(1 << 20, KEPT), (0, 1)])
def test_of_small_results_several_rounds_are_kept_and_each_may_be(monkeypatch, small, most):
    monkeypatch.setattr(timed_process, "SMALL", small)
    worker, kept = Worker(take_samples=SAMPLED), Counter()
    _, staged = timed(worker)
    for _ in range(RUNS):
        process = TimedProcess(worker, staged, "forward")
        sample = process.sampler("solution", "gpu")
        for round_ in range(6):
            staged.arena.tensor(staged.results["output"]).fill_(round_)
            sample(2)
        found = [int(results["output"].max()) for _, results in process.kept["solution"]]
        assert len(found) == len({*found}) == most
        kept.update(found)
    assert {*kept} == {*range(6)}
    assert min(kept.values()) > RUNS * most / 6 / 2, "each round has the same chance"


# --- what it reports ------------------------------------------------------------------------------


INF, NAN = float("inf"), float("nan")
NO_SAMPLES = [[NAN, 1.0], [INF, 1.0], ["1", 1.0], [0.0, 1.0], [1.0], None]
NO_CALLS = [{"call": 2, "shift": 1}, {"call": 0, "shift": None}, {"call": -1, "shift": 1}, None]


@pytest.mark.parametrize(
    "fields",
    [
        *({"samples": {"solution": each}} for each in NO_SAMPLES),
        *({"samples": each} for each in ({}, {"eager": [1.0, 1.0]})),
        *({"kept": each} for each in NO_CALLS),
        *({"shifts": each} for each in (None, [0], [0, 0.5], [0, 1 << 70])),
    ],
)
def test_a_report_of_other_samples_calls_or_shifts_is_tampering(fields):
    assert sampled() == {"solution": [1.5, 2.0]}
    with pytest.raises(Failure) as failed:
        sampled(**fields)
    assert failed.value.verdict == "TAMPERED"


@pytest.mark.parametrize("probes", [[], [[1.0]], [[1.0, NAN]], [[1.0, 1.0]] * 2])
def test_a_probe_has_the_samples_that_were_asked_for(probes):
    request = TakeSamples("gpu", probes=2)
    assert ask(Worker(take_samples={"probes": [[3.0, 4.0]]}), request).probes == [[3.0, 4.0]]
    with pytest.raises(Failure):
        ask(Worker(take_samples={"probes": probes}), request)
