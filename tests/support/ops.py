"""The ops that the conformance suite takes: every one whose file is whole, and the skeleton."""

import dataclasses

import pytest
import torch

from common import interfaces, ops
from common.ops._skeleton import OP as SKELETON

FILES = interfaces.names()
ALL = [*map(ops.load, ops.names()), SKELETON]
every_op = pytest.mark.parametrize("op", ALL, ids=lambda op: op.name)
GRID = [(op, case) for op in ALL for case in (*op.cases("smoke"), *op.tier("board", "cpu"))]
every_case = pytest.mark.parametrize(
    ("op", "case"), GRID, ids=[f"{op.name}-{case.name}" for op, case in GRID]
)


def lacks(op, what):
    """The message of a promise that an op's file does not keep."""
    return f"common/ops/{op.name}.py: {what}"


def sizes_of(case):
    """The fields without a default."""
    fields = dataclasses.fields(case)
    return {field.name for field in fields if field.default is dataclasses.MISSING}


def drawn(op, case, seed=0):
    """The arguments that follow from the seed."""
    return op.draw(case, torch.Generator().manual_seed(seed))
