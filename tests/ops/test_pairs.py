"""Each possible pair of options has a smoke case, within each subset of the options too."""

from itertools import combinations

import pytest
import torch

from common import ops
from common.ops._pairs import all_pairs, restricted
from tests.support.ops import every_op, lacks

ROPE = ops.load("rope")
FACTORS = ROPE.table.factors
IMPOSSIBLE = [
    (excluded, ("cp", cp))
    for excluded in (("starts", "contiguous"), ("starts", "sparse"), ("length", "odd"))
    for cp in FACTORS["cp"][1:]
]


@every_op
def test_each_possible_pair_has_a_row_in_each_subset(op):
    assert op.table, lacks(op, "OP.table: options whose pairs the smoke cases do not show")
    rows = op.table.rows
    assert len({str(row) for row in rows}) == len(rows) >= 15
    assert {"dtype", "layout", "upstream"} <= op.table.factors.keys(), lacks(op, "OP.table")
    for subset in ({}, *op.table.subsets):
        values = restricted(op.table.factors, subset)
        possible = {frozenset(pair) for pair in all_pairs(values) if op.table.possible(dict(pair))}
        inside = [row for row in rows if all(row[name] in values[name] for name in row)]
        found = {frozenset(pair) for row in inside for pair in combinations(row.items(), 2)}
        assert found == possible


@every_op
def test_every_row_is_a_smoke_case(op):
    smoke = {case.name for case in op.cases("smoke")}
    missing = {case.name for case in op.table.cases()} - smoke
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


@pytest.mark.parametrize("pair", IMPOSSIBLE)
def test_what_rope_calls_impossible_is_refused_by_its_reference(pair):
    impossible = [each for each in all_pairs(FACTORS) if not ROPE.table.possible(dict(each))]
    assert {*map(frozenset, impossible)} == {*map(frozenset, IMPOSSIBLE)}
    usual = {name: values[0] for name, values in FACTORS.items()}
    case = ROPE.table.make(**usual | dict(pair))
    with pytest.raises((AssertionError, RuntimeError)):
        ROPE.reference(**ROPE.draw(case, torch.Generator().manual_seed(0)))


def test_a_case_has_the_values_of_its_row():
    for row in ROPE.table.rows:
        case = ROPE.table.make(**row)
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
