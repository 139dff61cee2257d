"""The model of GPU time: its terms, and how its order agrees with what GPUs measured."""

import statistics
from collections import Counter

import pytest

from common import paths
from common.board import model
from common.board.ranking import op_order
from common.records.lines import Operator
from tests.support import boards, fitting
from tests.support import corpora as corpus
from tests.support.boards import launch
from tests.support.fitting import DEVICES, FITTED, HELD_OUT, pairs

pytestmark = pytest.mark.slow

H200 = DEVICES[FITTED]
OVERALL = {FITTED: 0.9, HELD_OUT: 0.85}
"""The least rank correlation over all cases of an op, by the device's folder."""
WITHIN = 0.8
"""The least median of the rank correlations within the cases of an op."""
FEW = 4
"""Fewer solutions of a case do not make an order."""
FAR_OFF = 1.5
"""A modelled time that is off by more is said in `docs/model.md`."""


def microseconds(*steps):
    return model.gpu_time(steps, H200)


def test_a_copy_takes_the_time_of_its_bytes():
    (copy, _) = model.limits(boards.counted("alice/rope"), H200).values()
    assert microseconds(launch()) == pytest.approx(copy, rel=0.06)


@pytest.mark.parametrize(
    "changed",
    [
        {"read": 1 << 28},  # more bytes reach memory
        {"grid": (1 << 20, 1, 1)},  # more programs
        {"rounds": 1000.0},  # loads wait for one another
        {"flops": {"bf16": 1 << 38}},  # products
        {"grid": (133, 1, 1)},  # one program is left for a second wave
    ],
)
def test_each_term_costs_time(changed):
    assert microseconds(launch(**changed)) > 1.05 * microseconds(launch())


def test_few_programs_leave_processors_idle_and_full_precision_the_tensor_cores():
    one, all_of_them = (microseconds(launch(grid=(n, 1, 1))) - 1e6 * model.STEP for n in (1, 132))
    assert one == pytest.approx(132 * all_of_them)
    times = [microseconds(launch(flops={kind: 1 << 38})) for kind in ("bf16", "tf32", "fp32")]
    assert times[0] < times[1] < times[2]


def test_an_operator_takes_the_time_of_its_bytes_or_of_its_product():
    add = Operator(operator="add", read=1 << 28, written=1 << 27, dtype="bfloat16")
    product = Operator(operator="mm", read=1, written=1, flops=1 << 40, dtype="bfloat16")
    line = boards.counted("alice/rope", flops=1 << 40, params={"dtype": "bfloat16"})
    assert microseconds(product) == model.limits(line, H200)["dense"]
    assert microseconds(add, add) == pytest.approx(2 * microseconds(add))


def test_the_host_pays_for_each_step():
    operator = Operator(operator="add", read=1, written=1)
    times = [model.host_time(boards.counted("alice/rope", step)) for step in (launch(), operator)]
    assert times[0] > times[1]


# --- against what was measured --------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted():
    return fitting.counted()


@pytest.fixture(params=[FITTED, HELD_OUT])
def device(request):
    """The folder of a committed record."""
    if not (paths.RESULTS / request.param).exists():
        pytest.skip(f"no record of {request.param}")
    return request.param


def op_of(pair):
    return pair.row.op


def by_case(found):
    """Return the correlation of each case of so many solutions that they have an order.

    Only of cases that a copy limits: where products do, caches and tiles decide the order.
    """
    found = [pair for pair in found if "dense" not in pair.row.gpu]
    groups = Counter(map(case_of, fitting.ranked_together(found)))
    all_of_them = fitting.correlations(found, case_of)
    return {case: all_of_them[case] for case, number in groups.items() if number >= FEW}


def case_of(pair):
    return pair.row.op, pair.row.case, pair.row.direction


def test_the_order_over_all_cases_of_an_op_is_that_of_the_clock(device, counted):
    found = fitting.correlations(pairs(device, counted), op_of)
    ops = {"rope", "masked_linear", "masked_ffn", *["rotate_half"] * (device == FITTED)}
    assert set(found) >= ops
    assert min(found.values()) >= OVERALL[device], found


def test_the_order_within_a_case_is_that_of_the_clock(device, counted):
    found = by_case(pairs(device, counted))
    assert len(found) >= 6
    assert statistics.median(found.values()) >= WITHIN
    low = {group: round(value, 2) for group, value in found.items() if value < WITHIN}
    assert len(low) <= len(found) // 3, low


@pytest.mark.parametrize("constant", fitting.WITHOUT)
def test_each_constant_is_needed_and_at_its_best(constant, counted, monkeypatch):
    """A failure shows the constant that the fit finds."""
    committed = getattr(model, constant)
    monkeypatch.setattr(model, constant, committed)
    _, times = fitting.together(constant, fitting.times(FITTED, counted))
    whole = fitting.error(times)
    fitting.fit([constant], times)
    assert getattr(model, constant) == pytest.approx(committed, rel=0.05)
    setattr(model, constant, fitting.WITHOUT[constant])
    assert fitting.error(times) > 1.02 * whole


def test_the_docs_show_how_far_the_model_agrees(counted, pytestconfig):
    """`nox -s harness -- tests/board/test_model.py --write-docs` writes it."""
    devices = [each for each in OVERALL if (paths.RESULTS / each).exists()]
    text = "\n\n".join(agreement(device, counted) for device in devices)
    assert corpus.in_the_docs("agreement", text, pytestconfig.getoption("write_docs"), "model")


def agreement(device, counted):
    """Return tables of the correlations on a device, of what is far off, and of the errors."""
    found = pairs(device, counted)
    within, of_ops = by_case(found), fitting.correlations(found, op_of)
    lines = [f"On {device}:", "", "| op | pairs | rank correlation | by case, median | least |"]
    lines.append("|---|---|---|---|---|")
    for op, value in sorted(of_ops.items(), key=lambda item: op_order(item[0])):
        number = sum(pair.row.op == op for pair in fitting.ranked_together(found))
        cases = [each for (of, *_), each in within.items() if of == op]
        inside = f"{statistics.median(cases):.2f} | {min(cases):.2f}" if cases else "– | –"
        lines.append(f"| {op} | {number} | {value:.3f} | {inside} |")
    ratios, kinds = {}, {}
    for pair in found:
        if pair.row.ranked_by == "gpu":
            ratios.setdefault(pair.row.solution, []).append(pair.modelled / pair.measured)
    for time in fitting.times(device, counted):
        kinds.setdefault(time.of, []).append(time)
    lines += ["", "| solution | modelled / measured |", "|---|---|"]
    lines += [f"| {solution} | {min(each):.2f} to {max(each):.2f} |"
              for solution, each in sorted(ratios.items())
              if max(max(each), 1 / min(each)) > FAR_OFF]  # fmt: skip
    lines += ["", "| times of | number | off by, on average |", "|---|---|---|"]
    lines += [f"| {kind} | {len(times)} | {fitting.error(times):.1%} |"
              for kind, times in sorted(kinds.items())]  # fmt: skip
    return "\n".join(lines)
