"""The order of verdicts, and replies that are none."""

from types import SimpleNamespace

import pytest

from common import ops
from common.arena import Arena
from common.commands.report import TierReport, end
from common.draws import Draws
from common.grading.grade import grade_case
from common.grading.problem import make_problem
from common.grading.sweep import Sweep
from common.paths import CONTRIBUTORS
from common.source import Place
from common.spec import OUTPUT
from tests.support.workers import CHOOSE, chosen, written

ROPE = ops.load("rope")
CASES = {case.name: case for case in ROPE.cases("smoke")}
CASE = CASES["sbhd-7x2x3x16-float32"]
NO_REPLY = "the process wrote something other than a reply"


# --- the order of verdicts, on solutions with two faults ---

FAULTS = {
    "mutated before wrong": ("t.mul_(2); return t.clone()", "MUTATED_INPUT"),
    "shape before dtype": ("return t.double()[0]", "INCORRECT_SHAPE"),
    "dtype before values": ("return t.double() + 1", "INCORRECT_DTYPE"),
    "unwritten before wrong": ("return torch.empty_like(t) * 2", "UNWRITTEN_OUTPUT"),
    "unwritten before random": (
        "o = torch.rand_like(t); o[0] = torch.empty_like(t[0]); return o",
        "UNWRITTEN_OUTPUT",
    ),
    "wrong before random": ("return torch.rand_like(t)", "INCORRECT_NUMERICAL"),
    "an old number": ("return t.new_empty(t.shape).masked_fill(t > 9e9, 0)", "UNWRITTEN_OUTPUT"),
    "integers read as numbers": (
        "return torch.empty(4 * t.numel(), dtype=torch.uint8).view(t.dtype).view(t.shape)",
        "UNWRITTEN_OUTPUT",
    ),
    "freqs changed": ("freqs.mul_(2); return t.clone()", "MUTATED_INPUT"),
    "freqs changed behind what is used": ("freqs[-1] = 9; return t.clone()", "MUTATED_INPUT"),
    "torch does not take the dtype": ("return torch.zeros(3).int().softmax(0)", "RUNTIME_ERROR"),
    "another device": ("return torch.empty(t.shape, device='meta')", "RUNTIME_ERROR"),
    "sys.exit": ("import sys; sys.exit(0)", "RUNTIME_ERROR"),
    "a text that is none": ("raise ValueError('\\ud800\\x1b[31m')", "RUNTIME_ERROR"),
    "no tensor": ("return None", "INCORRECT_SHAPE"),
    "unsupported": ("raise NotImplementedError('later')", "UNSUPPORTED"),
    "raises": ("raise ValueError('two\\nlines')", "RUNTIME_ERROR"),
}


@pytest.fixture(scope="module")
def two_faults(tmp_path_factory, fork_server):
    """Return the forward verdict of each of FAULTS, by its name."""
    root = tmp_path_factory.mktemp("faults")
    solutions = {}
    for index, (name, (body, _)) in enumerate(FAULTS.items()):
        text = f"import torch\n\ndef rope(t, freqs):\n    with torch.no_grad():\n        {body}\n"
        solutions[written(root, text, "rope", f"fault{index}")] = name
    with Sweep("cpu", server=fork_server) as sweep:
        graded = sweep.grade(ROPE, [CASE], solutions)
        return {solutions[each.solution]: each.verdicts["forward"] for each in graded}


@pytest.mark.parametrize("name", FAULTS)
def test_the_earliest_cause_wins(name, two_faults):
    assert two_faults[name].verdict == FAULTS[name][1], two_faults[name]


# --- the store at fault ---

HALF = ops.load("rotate_half")
TEMPLATE = (CONTRIBUTORS / "_template" / "rotate_half.py").read_text()
LAST = "tl.store(y + HALF + lanes, x1, mask=mask)"
STORES = {
    "tl.store(y + HALF + lanes, x1, mask=lanes < HALF - 1)": "UNWRITTEN_OUTPUT",
    "tl.store(x + lanes, x1 + 1, mask=mask)": "MUTATED_INPUT",
    "tl.store(y + HALF + lanes, x1 + 1, mask=mask)": "INCORRECT_NUMERICAL",
    "tl.atomic_add(y + HALF + lanes, x1 + 1, mask=mask)": "INCORRECT_NUMERICAL",
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["2-float32", "10x2x4x8-float32"])
def test_the_end_has_the_line_of_the_store_that_is_at_fault(name, store, graded_source, capsys):
    masked = "tl.store(y + HALF + lanes, x1, mask=lanes < 0)"  # it writes nothing
    source = TEMPLATE.replace(LAST, f"{LAST}; {store}; {masked}" if "x1 + 1" in store else store)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if store in text)
    case = next(case for case in HALF.cases("smoke") if case.name == name)
    (found,) = graded_source(HALF, [case], source)
    assert found.verdicts["forward"].verdict == STORES[store]
    assert found.verdicts["forward"].places == (Place("rotate_half.py", line, store),)
    report = TierReport(verbose=False)
    report.add(HALF, case, [*found.verdicts.values()])
    end(report.summaries("smoke", "cpu"))
    assert f" rotate_half.py:{line}: " in capsys.readouterr().out


def test_a_store_that_a_later_call_alone_makes_has_its_line(graded_source):
    wrong, width = LAST.replace("x1", "x2"), "next_power_of_2(half)"
    source = TEMPLATE.replace(LAST, f"if BLOCK < 2 * HALF: {LAST}\n    else: {wrong}")
    source = source.replace(width, f"{width} * (SEEN.add(half) or len(SEEN))") + "SEEN = set()\n"
    cases = [case for case in HALF.cases("smoke") if case.name in ("2-float32", "37x6-float32")]
    later = graded_source(HALF, cases, source, at_once=1)[1].verdicts["forward"]
    assert later.after and later.places[0].code == wrong


@pytest.mark.parametrize("verb", ["store", "atomic_add"])
@pytest.mark.parametrize("end", ["return out + 1", "out += 1\n    return out"])
def test_a_wrong_element_that_torch_has_written_has_no_line(graded_source, verb, end):
    kernel = (CONTRIBUTORS / "_template" / "rope.py").read_text().replace("tl.store", f"tl.{verb}")
    source = kernel.replace("\n    return out\n", f"\n    {end}\n").replace("empty_", "zeros_")
    verdict = graded_source(ROPE, [CASE], source)[0].verdicts["forward"]
    assert (verdict.verdict, verdict.places) == ("INCORRECT_NUMERICAL", ())


# --- several outputs, each graded by itself ---

QK = ops.load("rope_qk")
OUTPUTS = {
    "return a, b": ("PASSED", "PASSED", ""),
    "return [a, b]": ("INCORRECT_SHAPE",) * 2 + ("returned list, not a tuple of 2 tensors",),
    "return (a,)": ("INCORRECT_SHAPE",) * 2 + ("returned (Tensor), not a tuple of 2 tensors",),
    "return a, None": ("INCORRECT_SHAPE",) * 2 + ("returned (Tensor, NoneType), not a tuple",),
    "return a, b[:-1]": ("INCORRECT_SHAPE",) * 2 + ("output_k has shape [6, 2, 1, 16], expected",),
    "return a, b.double()": ("INCORRECT_DTYPE",) * 2 + ("output_k is float64",),
    "return a, torch.empty_like(b)": ("UNWRITTEN_OUTPUT", "INCORRECT_NUMERICAL", "output_k holds"),
    "return a, b + 1": ("INCORRECT_NUMERICAL", "PASSED", "output_k wrong: every element"),
    "return a, 2 * b": ("INCORRECT_NUMERICAL",) * 2 + ("; output_q is right",),
    "a.data[..., :1, :] = b.data; return a, a[..., :1, :]": (
        "INCORRECT_NUMERICAL", "INCORRECT_NUMERICAL", "output_q wrong: head 0 of 0 to 2, every",
    ),
    "return a, b.detach()": ("PASSED", "INCORRECT_NUMERICAL", "the gradient of k is None"),
    "return a.detach(), b.detach()": ("PASSED", "UNSUPPORTED", "the output has no grad_fn"),
    "return a, k": ("MUTATED_INPUT",) * 2 + ("the output lies in the memory of an argument",),
    "k.data.mul_(2); return a, b": ("MUTATED_INPUT",) * 2 + ("k changed",),
}  # fmt: skip
"""By the end of a right `rope_qk`: both verdicts, and how a reason begins or ends."""


@pytest.mark.parametrize("end", OUTPUTS)
def test_each_output_is_graded_by_itself(end, graded_source, monkeypatch):
    monkeypatch.setattr(CHOOSE, chosen())
    text = (
        "import torch\nfrom common.ops.rope_qk import reference\n\n"
        f"def rope_qk(q, k, freqs):\n    a, b = reference(q, k, freqs)\n    {end}\n"
    )
    (found,) = graded_source(QK, [next(QK.cases("smoke"))], text)
    forward, backward, said = OUTPUTS[end]
    assert {each: one.verdict for each, one in found.verdicts.items()} == {
        "forward": forward, "backward": backward,
    }, found.verdicts  # fmt: skip
    assert any(said in verdict.reason for verdict in found.verdicts.values()), found.verdicts


def test_reasons_are_one_line_and_say_where(two_faults):
    line = r"line 5 of rope.py: raise ValueError('two\nlines')"
    assert two_faults["raises"].reason == f"ValueError: two lines, {line}"
    assert all(verdict.reason.isprintable() for verdict in two_faults.values())
    assert two_faults["sys.exit"].reason == "SystemExit: 0, line 5 of rope.py: sys.exit(0)"


@pytest.mark.parametrize("reply", ["{}", '{"number": 3, "shape": 3}', "[" * 99_999, "no json"])
def test_what_is_no_reply_costs_that_solution_alone(graded_source, reply):
    """Written over the socket by a solution that finds it among its open files."""
    source = (
        "import os, stat\n\ndef rope(t, freqs):\n    for fd in range(3, 64):\n        try:\n"
        "            if stat.S_ISSOCK(os.fstat(fd).st_mode):\n"
        f"                os.write(fd, {reply!r}.encode() + b'\\n')\n"
        "        except OSError:\n            pass\n    return t\n"
    )
    assert graded_source(ROPE, [CASE], source)[0].verdicts["forward"].verdict == "TAMPERED"


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ({"verdict": "PASSED", "reason": ""}, {}), ({"verdict": ["PASSED"], "reason": ""}, {}),
        ({"verdict": "CRASHED"}, {}), ({"output": None}, {}),
        ({"shape": [], "dtype": ""}, {}), (None, {"verdict": "PASSED", "reason": ""}),
        (None, {"another": {"shape": [], "dtype": ""}}), (None, {}),
    ],
)  # fmt: skip
def test_a_process_does_not_pass_by_its_own_words(monkeypatch, forward, backward):
    """Replies with the right token, but of another form."""
    monkeypatch.setattr(CHOOSE, chosen())
    problem = make_problem(ROPE, CASE, Draws(0), "cpu")
    shape = list(problem.truth[OUTPUT].shape)
    right = {OUTPUT: {"shape": shape, "dtype": CASE.dtype, "differentiable": True}}
    replies = {"forward": forward or right, "backward": backward, "stored": {"place": 3}}
    worker = SimpleNamespace(
        solution=SimpleNamespace(name="somebody/rope"),
        arena=lambda nbytes: Arena("cpu", nbytes),
        ask=lambda request: replies[request.__struct_config__.tag],
        cases=[],
        recurred=0,
    )
    last = grade_case(problem, worker)["backward"]
    assert (last.verdict, last.reason) == ("CRASHED", NO_REPLY)
