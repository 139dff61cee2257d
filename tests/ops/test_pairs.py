"""Each pair of options has a smoke case, or a reason why it can have none, in each subset too."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from common import ops
from common.ops._pairs import all_pairs, completes, pairs_of, pairwise, restricted
from common.ops._rope_cases import case_of, table
from common.ops._rope_options import EXCLUDED, FACTORS, MANY, PARALLEL
from common.paths import ROOT
from common.spec import Exclusion
from tests.support.ops import every_op, lacks

ROPE = ops.load("rope")
USUAL = {name: values[0] for name, values in FACTORS.items()}
FIVE = Exclusion("five", a=(5,), b=(5, 6))
SMALL = {"a": (4, 5), "b": (5, 6, 7), "c": (True, False)}


def impossible(factors, exclusions):
    """Return the pairs that no row can have, each with the reasons.

    A pair may be impossible by two exclusions together: where start_positions has a layout it is
    given, and where it is given there is no context parallelism.
    """
    pairs = {}
    for pair in all_pairs(factors):
        if not completes(dict(pair), factors, exclusions):
            reasons = [
                exclusion.reason
                for exclusion in exclusions
                if exclusion.values.keys() & dict(pair).keys()
            ]
            direct = [
                exclusion.reason for exclusion in exclusions if exclusion.holds_for(dict(pair))
            ]
            pairs[pair] = "; ".join(direct or reasons)
    return pairs


def had(rows, values):
    """Return the pairs of those rows that have these values alone."""
    return {
        pair
        for row in rows
        if all(value in values[name] for name, value in row.items())
        for pair in pairs_of(row)
    }


@every_op
def test_each_pair_has_a_row_or_a_reason_in_each_subset_too(op):
    assert op.table, lacks(op, "OP.table: options whose pairs the smoke cases do not show")
    factors, exclusions, subsets = op.table.factors, op.table.exclusions, op.table.subsets
    rows = pairwise(factors, exclusions, subsets)
    assert len({str(row) for row in rows}) == len(rows)
    for subset in ({}, *subsets):
        values = restricted(factors, subset)
        never = impossible(values, exclusions)
        assert had(rows, values) | never.keys() == set(all_pairs(values))
        assert not had(rows, values) & never.keys()
        assert all(never.values()), "each has a reason"


def test_a_subset_that_is_not_named_lacks_pairs():
    """What the test above would say of a table that does not know of a subset."""
    factors, exclusions = FACTORS, EXCLUDED
    values = restricted(factors, ROPE.table.subsets[0])
    assert not set(all_pairs(values)) <= had(pairwise(factors, exclusions), values)


def test_only_the_named_pairs_of_rope_cannot_be_had():
    assert impossible(FACTORS, EXCLUDED).keys() == {
        *(
            (("starts", starts), ("cp", cp))
            for starts in ("contiguous", "sparse")
            for cp in PARALLEL
        ),
        *((("length", "odd"), ("cp", cp)) for cp in PARALLEL),
    }


def test_the_promises_name_each_excluded_pair():
    promises = " ".join((ROOT / "docs" / "grading.md").read_text().split())
    assert all(each.reason in promises for each in EXCLUDED)


def forbidden():
    for exclusion in EXCLUDED:
        (one, values), (other, others) = exclusion.values.items()
        for value in values:
            for second in others:
                yield pytest.param(
                    {one: value, other: second}, id=f"{one}={value}-{other}={second}"
                )


@pytest.mark.parametrize("pair", list(forbidden()))
def test_an_excluded_pair_has_no_answer(pair):
    """An exclusion that nothing asks for fails here: the reference would take the case."""
    case = case_of(USUAL | pair)
    arguments = ROPE.draw(case, torch.Generator().manual_seed(0))
    with pytest.raises((AssertionError, RuntimeError)):
        ROPE.reference(**arguments)


def test_the_usual_row_has_an_answer():
    case = case_of(USUAL)
    ROPE.reference(**ROPE.draw(case, torch.Generator().manual_seed(0)))


@every_op
def test_every_row_is_a_smoke_case(op):
    """And the table is of the tensors' layouts, the upstream gradient's and the dtype at least."""
    assert {"dtype", "layout", "upstream"} <= op.table.factors.keys(), lacks(op, "OP.table")
    smoke = {case.name for case in op.cases("smoke")}
    rows = pairwise(op.table.factors, op.table.exclusions, op.table.subsets)
    assert len(rows) >= 15, lacks(op, f"OP.table has {len(rows)} rows")
    missing = {op.table.case_of(row).name for row in rows} - smoke
    assert not missing, lacks(op, f"no smoke case {sorted(missing)}")


@every_op
def test_half_types_and_contiguous_inputs_are_a_subset(op):
    """Most public kernels answer these alone."""
    subsets = [subset.items() for subset in op.table.subsets]
    halves = {"dtype": ("bfloat16", "float16")}.items()
    assert any(halves == subset for subset in subsets), lacks(
        op, "OP.table has no subset of half types"
    )
    alone = {"layout": ("contiguous",)}.items()
    assert any(alone <= subset for subset in subsets), lacks(
        op, "OP.table has no contiguous subset"
    )


def test_a_row_says_the_same_as_its_case():
    for row in table():
        case = case_of(row)
        same = ("dtype", "layout", "upstream", "freqs_layout", "angles", "spare", "d", "h")
        assert all(getattr(case, name) == row[name] for name in (*same, "interleaved"))
        assert row["tensor_format"].startswith(case.tensor_format)
        assert (case.ends_layout == "sparse") == (row["tensor_format"] == "thd, sparse")
        assert (case.cp_size, case.cp_rank) == row["cp"]
        assert row["starts"] == (case.starts_layout if case.starts else "none")
        assert (case.d2 == case.d) == (row["rotated"] == "all")
        count = len(case.lengths) or case.b
        few, many = (4, 64) if case.lengths else (2, 8)
        assert {"one": count == 1, "few": count == few, "many": count > many}[row["sequences"]]
        mine = [length // case.cp_size for length in case.lengths] or [case.s]
        assert any(length % 2 for length in mine) == (row["length"] == "odd")


def test_an_exclusion_is_kept_and_the_table_still_whole():
    rows = pairwise(SMALL, [FIVE])
    assert not [row for row in rows if FIVE.holds_for(row)]
    assert set(all_pairs(SMALL)) - had(rows, SMALL) == impossible(SMALL, [FIVE]).keys()
    assert set(impossible(SMALL, [FIVE]).values()) == {"five"}


def test_two_exclusions_make_a_third():
    """Where a is 5, b is 7; where c holds, b is not 7."""
    third = impossible(SMALL, [FIVE, Exclusion("seven", b=(7,), c=(True,))])
    assert third[("a", 5), ("c", True)] == "five; seven"


@pytest.mark.slow
def test_the_table_does_not_depend_on_the_hash_seed():
    script = """
from common import ops
for op in map(ops.load, ops.names()):
    print([case.name for case in op.cases("smoke")])
"""

    def names(seed):
        environment = {"PYTHONHASHSEED": seed, "PATH": ""}
        command = [sys.executable, "-c", script]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )

    one, other = (process.communicate()[0] for process in [names("1"), names("2")])
    assert one == other != ""


def test_rope_names_every_size_of_context_parallelism():
    assert {case.cp_size for case in ROPE.cases("smoke")} == {1, 2, 3, 4, 5}
    assert MANY > 64
