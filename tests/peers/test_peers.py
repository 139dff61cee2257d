"""Peers that need torch alone pass; the others are absent with a reason, or fail row by row."""

import json
import os
import sys
from collections import defaultdict
from unittest import mock

import pytest
import torch
from torch.nn import functional

from common import ops, solutions, wire
from common.grading.sweep import Sweep
from common.paths import PEERS, ROOT
from common.sandbox import clock, contract
from common.sandbox.seal import Seal
from common.sandbox.session import Session
from common.solutions import PACKAGES
from common.verdicts import Failure
from tests.support import corpora
from tests.support.processes import run
from tests.support.workers import written

pytestmark = pytest.mark.slow

OF_TORCH = {"eager", "gather_scatter", "grouped_mm", "torch_compile"}
LIBRARIES = {
    "flash_attention", "flash_linear_attention", "liger_kernel", "lmdeploy", "quack",
    "transformer_engine", "transformers",
}  # fmt: skip


def test_what_every_peer_needs_is_known():
    handles = {peer.handle for peer in solutions.discover(PEERS)}
    assert handles == OF_TORCH | LIBRARIES
    assert {handle for handle in handles if PACKAGES.get(handle) == "torch"} == OF_TORCH


def test_a_missing_library_is_absent_with_its_reason(monkeypatch):
    find = solutions.importlib.util.find_spec
    missing = {"fla", "quack"}
    monkeypatch.setattr(
        solutions.importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )
    present, absent = solutions.peers()
    assert absent["flash_linear_attention"] == "the package fla is not installed"
    assert absent["quack"] == "the package quack is not installed"
    assert not {peer.handle for peer in present} & absent.keys()


def test_a_broken_library_costs_its_own_rows_alone(tmp_path):
    """The library is found but does not import; the worker reports that, and the exit code is 0."""
    (tmp_path / "quack").mkdir()
    (tmp_path / "quack" / "__init__.py").write_text("raise OSError('libcute.so: not found')\n")
    rows = tmp_path / "rows.json"
    arguments = "grade --only quack --op rope --sample 2 --device cpu --json".split()
    env = os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    ran = run(sys.executable, "-m", "common", *arguments, rows, cwd=ROOT, env=env)
    assert ran.returncode == 0, ran.stderr
    found = {(row["verdict"], row["reason"]) for row in json.loads(rows.read_text())}
    ((verdict, reason),) = found
    assert verdict == "COMPILE_ERROR"
    assert reason.startswith("does not import: OSError: libcute.so: not found, line ")


# --- what is not timed ----------------------------------------------------------------------------

PREPARED = """
def prepare(t, freqs):
    return lambda: t
"""


def test_a_peer_prepares_and_a_contributor_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = written(tmp_path, PREPARED, "rope").path
    with pytest.raises(Failure, match="lacks a function named rope"):
        contract.load(path, ops.load("rope"))
    monkeypatch.setattr(contract, "PEERS", tmp_path)
    loaded = contract.load(path, ops.load("rope"))
    assert loaded.prepare("t", "freqs")() == loaded.function("t", freqs="freqs") == "t"
    assert [*loaded.parameters] == ["t", "freqs"]
    path.write_text("def prepare(t):\n    return lambda: t\n")
    with pytest.raises(Failure, match="another signature"):
        contract.load(path, ops.load("rope"))


def test_what_is_prepared_is_left_out_of_the_timed_call():
    done = []

    def prepare(t):
        done.append("prepared")
        return lambda: done.append("called")

    session = Session(Seal([]))
    session.bind = lambda call: ({"t": torch.zeros(1)}, {})
    session.tensor = lambda slot: None
    session.solution = contract.Loaded(ops.load("rope"), None, None, {}, prepare)
    slot = wire.TensorSlot(0, 4, "float32", (1,), (1,))
    given = wire.Arguments({}, [], {}, [], {}, {"upstream": slot})
    call = clock.timed_call(session, given, {})
    assert done == ["prepared"]
    call.forward(), call.forward()
    assert done == ["prepared", "called", "called"]
    assert not call.changing, "it would not see its inputs change"


# --- the masked ops, by what torch has ------------------------------------------------------------


@pytest.mark.parametrize("name", ["masked_linear", "masked_ffn"])
def test_peers_of_torch_alone_take_what_they_can(name, fork_server):
    """A grouped product takes rows of whole 16 bytes, and torch.compile wants a GPU."""
    op, found = ops.load(name), defaultdict(set)
    plain = [peer for peer in solutions.discover(PEERS) if peer.handle in OF_TORCH]
    with Sweep("cpu", server=fork_server) as sweep:
        for graded in sweep.grade(op, corpora.sample(op, 0), plain):
            itemsize = getattr(torch, graded.case.dtype).itemsize
            whole = all(width * itemsize % 16 == 0 for width in graded.case.widths)
            verdicts = {verdict.verdict for verdict in graded.verdicts.values()}
            found[graded.solution.handle, whole] |= verdicts
    for whole in (True, False):
        assert found["eager", whole] == found["gather_scatter", whole] == {"PASSED"}
        assert found["grouped_mm", whole] == {"PASSED" if whole else "UNSUPPORTED"}
        assert found["torch_compile", whole] == {"UNSUPPORTED"}


@pytest.mark.parametrize(("spans", "rows"), [(1, [8, 8, 8]), (8, [64, 72])])
def test_a_weight_of_many_spans_has_one_product(spans, rows):
    """Autograd would round its gradient after each slice."""
    op = ops.load("masked_linear")
    mask = torch.tensor([False] * 8 + [*[True] * 8, *[False] * 8] * spans)
    x, w_v, w_t = torch.randn(len(mask), 6), torch.randn(5, 6), torch.randn(5, 6)
    with mock.patch.object(functional, "linear", wraps=functional.linear) as product:
        load = contract.load(PEERS / "gather_scatter" / "masked_linear.py", op)
        result = load.prepare(x, w_v, w_t, mask)()
    assert [len(call.args[0]) for call in product.call_args_list] == rows
    torch.testing.assert_close(result, op.reference(x, w_v, w_t, mask))
