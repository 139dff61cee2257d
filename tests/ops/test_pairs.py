"""Each possible pair of options has a smoke case, within each subset of the options too."""

import subprocess
import sys
from itertools import combinations

import pytest
import torch

from common import ops
from common.ops._pairs import all_pairs, restricted, rows_of
from common.paths import ROOT
from common.spec import PairTable
from tests.support.ops import every_op, lacks

ROPE = ops.load("rope")
FACTORS = ROPE.table.factors
USUAL = {name: values[0] for name, values in FACTORS.items()}
IMPOSSIBLE = [
    (excluded, ("cp", cp))
    for excluded in (("starts", "contiguous"), ("starts", "sparse"), ("length", "odd"))
    for cp in FACTORS["cp"][1:]
]


def pairs_of(rows, values):
    """Return the pairs of the rows that have only these values."""
    return {
        frozenset(pair)
        for row in rows
        if all(value in values[name] for name, value in row.items())
        for pair in combinations(row.items(), 2)
    }


@every_op
def test_each_possible_pair_has_a_row_in_each_subset(op):
    assert op.table, lacks(op, "OP.table: options whose pairs the smoke cases do not show")
    rows = rows_of(op.table)
    assert len({str(row) for row in rows}) == len(rows) >= 15
    assert {"dtype", "layout", "upstream"} <= op.table.factors.keys(), lacks(op, "OP.table")
    for subset in ({}, *op.table.subsets):
        values = restricted(op.table.factors, subset)
        possible = {frozenset(pair) for pair in all_pairs(values) if op.table.possible(dict(pair))}
        assert pairs_of(rows, values) == possible


@every_op
def test_every_row_is_a_smoke_case(op):
    smoke = {case.name for case in op.cases("smoke")}
    missing = {op.table.case_of(row).name for row in rows_of(op.table)} - smoke
    assert not missing, lacks(op, f"no smoke case {sorted(missing)}")


@every_op
def test_half_types_and_contiguous_inputs_are_subsets(op):
    halves, contiguous = {"dtype": ("bfloat16", "float16")}, {"layout": ("contiguous",)}
    formats = [{"tensor_format": (tensor_format,)} for tensor_format in ("sbhd", "bshd")]
    for subset in ({"angles": ("paired", "far")}, *formats):
        assert subset in ROPE.table.subsets
    assert halves in op.table.subsets, lacks(op, "OP.table has no subset of half types")
    assert any(contiguous.items() <= subset.items() for subset in op.table.subsets), lacks(
        op, "OP.table has no subset of contiguous inputs"
    )


def test_a_subset_that_is_not_named_lacks_pairs():
    values = restricted(FACTORS, ROPE.table.subsets[0])
    rows = rows_of(PairTable(FACTORS, ROPE.table.case_of, possible=ROPE.table.possible))
    assert not {*map(frozenset, all_pairs(values))} <= pairs_of(rows, values)


@pytest.mark.parametrize("pair", [(), *IMPOSSIBLE])
def test_the_reference_refuses_exactly_the_impossible_pairs(pair):
    impossible = [each for each in all_pairs(FACTORS) if not ROPE.table.possible(dict(each))]
    assert {*map(frozenset, impossible)} == {*map(frozenset, IMPOSSIBLE)}
    case = ROPE.table.case_of(USUAL | dict(pair))
    arguments = ROPE.draw(case, torch.Generator().manual_seed(0))
    if not pair:
        ROPE.reference(**arguments)
        return
    with pytest.raises((AssertionError, RuntimeError)):
        ROPE.reference(**arguments)


def test_a_case_has_the_values_of_its_row():
    for row in rows_of(ROPE.table):
        case = ROPE.table.case_of(row)
        assert case.tensor_format == row["tensor_format"].removesuffix(", sparse")
        assert (case.ends_layout == "sparse") == (row["tensor_format"] == "thd, sparse")
        assert (case.cp_size, case.cp_rank) == row["cp"]
        assert row["starts"] == (case.starts_layout if case.starts else "none")
        assert (case.d2 == case.d) == (row["rotated"] == "all")
        count = len(case.lengths) or case.b
        few, many = (4, 64) if case.lengths else (2, 8)
        assert {"one": count == 1, "few": count == few, "many": count > many}[row["sequences"]]
        mine = [length // case.cp_size for length in case.lengths] or [case.s]
        assert any(length % 2 for length in mine) == (row["length"] == "odd")


@pytest.mark.slow
def test_the_smoke_cases_do_not_depend_on_the_hash_seed():
    names = "[case.name for op in map(ops.load, ops.names()) for case in op.cases('smoke')]"
    command = [sys.executable, "-c", f"from common import ops; print({names})"]
    one, other = (
        subprocess.check_output(command, cwd=ROOT, env={"PYTHONHASHSEED": seed, "PATH": ""})
        for seed in "12"
    )
    assert one == other != b""
