"""What every op promises of its cases, its draws and its least work.

Of what its smoke cases hold see test_smoke.py, of its reference's numbers test_reference.py.
An op whose file lacks something fails here, with a message that says so.
"""

import dataclasses
import json
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import get_args

import pytest
import torch

from common import ops
from common.draws import Draws
from common.gradients import outputs_of
from common.grading.problem import make_problem
from common.ops._draw import draw, place
from common.spec import DIRECTIONS, TIERS, Layout
from tests.support.ops import FILES, drawn, every_case, every_op, lacks, sizes_of


def tensors(arguments):
    return {name: v for name, v in arguments.items() if isinstance(v, torch.Tensor)}


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_whole(name):
    """The commands leave out an op whose file is not, with a line: this one."""
    assert ops.valid([name], *TIERS)


@every_op
def test_every_track_is_declared_and_on_the_board(op):
    for tier in ("smoke", "matrix", "board"):
        assert list(op.cases(tier)), lacks(op, f"no case of tier {tier}")
    for tiers in (("board",), TIERS):
        cases = [case for tier in tiers for case in op.cases(tier)]
        found = {*map(op.track_of, cases)}
        assert found == {*op.tracks}, lacks(op, f"tracks of the cases of {tiers}")


@every_case
def test_a_drawn_call_is_as_the_case_says(op, case):
    def refuse(**arguments):
        raise AssertionError("the reference ran")

    unrun = dataclasses.replace(op, reference=refuse)
    (one, upstream), (same, _), (other, _) = (draw(unrun, case, seed, "cpu") for seed in (1, 1, 2))
    outputs, dtype = outputs_of(op.reference(**one)), getattr(torch, case.dtype)
    first = op.differentiable[0]
    shapes = [tuple(each.shape) for each in outputs]
    assert shapes == [*op.outputs(case).values()]
    assert shapes == [tuple(each.shape) for each in upstream.values()]
    assert {each.dtype for each in (*outputs, one[first])} == {dtype}
    split = {shape[op.split[name]] for name, shape in op.outputs(case).items()}
    for name, dim in op.split.items():
        if name in one:
            assert one[name].shape[dim] in split, lacks(op, f"split of {name}")
    assert any(t.isinf().any() for t in tensors(one).values()) == (case.values == "infinite")
    layouts = {**case.layouts, first: case.layout, **dict.fromkeys(upstream, case.upstream)}
    for name, tensor in tensors({**one, **upstream}).items():
        layout = layouts.get(name, "contiguous")
        placed = place(torch.zeros(tensor.shape, dtype=tensor.dtype), layout)
        for property_of in (torch.Tensor.stride, torch.Tensor.storage_offset):
            assert property_of(tensor) == property_of(placed)
        assert tensor.untyped_storage().nbytes() == placed.untyped_storage().nbytes()
    assert one.keys() == same.keys() == other.keys()
    for name, value in one.items():
        if name not in tensors(one):
            assert value == same[name] == other[name]
        else:
            assert torch.equal(value, same[name])
            assert name not in op.differentiable or not (
                value.numel() and torch.equal(value, other[name])
            )


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.bool])
def test_a_place_keeps_the_values(layout, dtype):
    values = torch.randint(-9, 9, (3, 4, 5)).to(dtype)
    placed = place(values, layout)
    expected = values[:1].expand(3, 4, 5) if layout == "expanded" else values
    assert torch.equal(placed, expected)
    assert (placed.stride() == values.stride()) == (layout in ("contiguous", "offset"))


@pytest.mark.parametrize("rows", [3, 4, 38])
def test_a_far_view_passes_int32_by_its_product_alone_and_takes_no_memory(rows):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    placed = place(torch.ones(rows, 24, dtype=torch.bfloat16), "far")
    step = placed.stride(0)
    assert step < 2**31 <= (rows - 1) * step
    assert step % 16 == 0
    assert 2**32 <= placed.untyped_storage().nbytes() < 2**32 + 2**12
    assert resident() - before < 2**28


@every_op
def test_the_parameters_say_all_that_a_case_is_drawn_from(op):
    uses = {"ranked_by", "twin"}
    for case in (*op.cases("smoke"), *op.cases("board")):
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in case.params.items()
        }
        assert not uses & values.keys()
        used = {name: getattr(case, name) for name in uses}
        assert type(case)(**values, **used) == case
        assert json.loads(json.dumps(case.params)) == case.params
        assert {"dtype", *sizes_of(case)} <= case.params.keys()


@every_op
def test_twins_are_small_and_keep_all_but_their_size(op):
    for case in op.cases("board"):
        twin = op.twin(case)
        before, after = dataclasses.asdict(case), dataclasses.asdict(twin)
        assert twin.twin
        assert not case.twin
        changed = {name for name in before if before[name] != after[name]}
        assert changed <= {*sizes_of(case), *case.lists, "twin"}, lacks(op, f"twin of {case.name}")
        tensor = drawn(op, twin)[op.differentiable[0]]
        assert tensor.shape[-1] <= 512, lacks(op, f"twin of {case.name} is wide")
        assert 0 < prod(tensor.shape[:-1]) <= 512, lacks(op, f"twin of {case.name} is long")


def dimensions(case):
    """The sizes that a kernel could confuse, with the number of sequences and their sum."""
    lists = [getattr(case, name) for name in case.lists]
    several = [size for entries in lists if entries for size in (len(entries), sum(entries))]
    sizes = [getattr(case, name) for name in sorted(sizes_of(case))]
    flat = [size for each in sizes for size in (each if isinstance(each, tuple) else (each,))]
    return (*several, *filter(None, flat))


@every_op
def test_dimensions_of_a_twin_differ_where_those_of_its_case_do(op):
    """A kernel that confuses two of them passes where they are equal, and fails on a GPU."""
    twins = [(dimensions(case), dimensions(op.twin(case))) for case in op.cases("board")]
    for before, after in twins:
        for (a, x), (b, y) in combinations(zip(before, after, strict=True), 2):
            assert a == b or x != y, lacks(op, f"twin {after} of {before}")
    even = [all(size.bit_count() == 1 for size in after) for _, after in twins]
    assert any(even), lacks(op, "no twin whose sizes are all powers of two")
    assert not all(even), lacks(op, "no twin with a size that is no power of two")


@every_op
def test_work_is_at_least_reading_and_writing_every_element(op):
    for case, direction in product(op.cases("board"), DIRECTIONS):
        work, itemsize = op.work(case, direction), getattr(torch, case.dtype).itemsize
        least = op.elements(case) + prod(getattr(case, "shape", ()))
        assert work.bytes >= least * itemsize, lacks(op, f"work of {case.name}")
        assert work.flops > 0
        twin = op.twin(case)
        first = drawn(op, twin)[op.differentiable[0]].numel()
        assert op.work(twin, direction).bytes >= (first + op.elements(twin)) * itemsize


@pytest.mark.parametrize("which", ["layout", "upstream"])
def test_the_reference_gets_no_far_view(which):
    """cuBLAS cannot read one, and the budget is eager's on the same values."""
    op, seen = ops.load("masked_linear"), []

    def spy(x, **others):
        seen.append(x.is_contiguous())
        output = op.reference(x, **others)
        output.register_hook(lambda gradient: seen.append(gradient.is_contiguous()))
        return output

    (far,) = (case for case in op.cases("smoke") if getattr(case, which) == "far")
    problem = make_problem(dataclasses.replace(op, reference=spy), far, Draws(0), "cpu")
    assert problem.truth["output"] is not None, "which computes it"
    assert len(seen) > 3 and all(seen)
    given = {"layout": problem.arguments["x"], "upstream": problem.upstream["upstream"]}
    assert not given[which].is_contiguous(), "the solution gets one"
