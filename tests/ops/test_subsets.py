"""A mistake in any option of `rope` shows, too, to a solution that answers few options.

Most public kernels take paired angles and contiguous tensors alone. If start positions came only in
cases that such a solution refuses, it could ignore them and pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from common import ops
from common.ops._draw import draw
from common.ops._pairs import all_pairs, completes, pairs_of, restricted
from common.ops._rope_cases import case_of, table
from common.ops._rope_options import EXCLUDED, FACTORS, SUBSETS
from common.ops.mistakes.rope import MISTAKES

ROPE = ops.load("rope")
LEFT = {
    **dict.fromkeys(SUBSETS, 0),
    "half types and sbhd": 44,
    "half types and contiguous inputs": 17,
    "sbhd and contiguous inputs": 79,
    "half types and sbhd and contiguous inputs": 95,
    "half types and paired angles, contiguous inputs, no further option": 6,
}
"""The subsets, some of them joined, each with the number of pairs that no row of it has."""


def values_of(name):
    """Return the options' values in a subset, or in all of several that are joined."""
    names = [subset for subset in SUBSETS if subset in (name, *name.split(" and "))]
    return functools.reduce(restricted, [SUBSETS[each] for each in names], FACTORS)


def rows_of(name):
    """Return the rows of the table that a solution of this subset answers."""
    values = values_of(name)
    return [row for row in table() if all(value in values[key] for key, value in row.items())]


@pytest.mark.parametrize("name", LEFT)
def test_so_many_pairs_are_left_in_a_subset(name):
    values = values_of(name)
    possible = {pair for pair in all_pairs(values) if completes(dict(pair), values, EXCLUDED)}
    had = {pair for row in rows_of(name) for pair in pairs_of(row)}
    assert len(possible - had) == LEFT[name]


# --- mistakes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A wrong `rope`, and the values of options without which it is right."""

    needs: Mapping[str, Any]
    rope: Callable[..., torch.Tensor] = ROPE.reference
    of_upstream: Callable[[torch.Tensor], torch.Tensor] = lambda upstream: upstream
    forward: bool = True
    """Whether it shows without a gradient."""


def contiguous(tensor):
    """Return what a kernel reads that ignores the strides; raise where it leaves the memory."""
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def without_strides(name):
    """Return a `rope` that ignores the strides of an argument."""

    def changed(**call):
        given = call.get(name)
        return ROPE.reference(**call if given is None else call | {name: contiguous(given)})

    return changed


def exchanged(**call):
    """Exchange the features of each pair of neighbours in the output."""
    output, d2 = ROPE.reference(**call), call["freqs"].shape[-1]
    if not call["interleaved"]:
        return output
    turned = output[..., :d2].unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.cat((turned, output[..., d2:]), dim=-1)


def turned_back(**call):
    """Turn the gradient of neighbours the wrong way."""
    wrong = MISTAKES["backward turns the same way as forward"]
    return (wrong if call["interleaved"] else ROPE.reference)(**call)


def doubled_where(condition):
    """Return a `rope` whose output is twice as large where the condition holds."""
    return lambda **call: ROPE.reference(**call) * (1 + condition(call["t"]))


def known(name, forward=True, **needs):
    """Return a mistake that `check` knows."""
    return Mistake(needs, MISTAKES[name], forward=forward)


PLANTED = {
    "format": known("bshd is read as sbhd", tensor_format="bshd"),
    "strides of t": Mistake({"layout": "strided"}, without_strides("t")),
    "strides of freqs": Mistake({"freqs_layout": "strided"}, without_strides("freqs")),
    "strides of starts": Mistake({"starts": "sparse"}, without_strides("start_positions")),
    "strides of ends": Mistake({"tensor_format": "thd, sparse"}, without_strides("cu_seqlens")),
    "strides of the gradient": Mistake(
        {"upstream": "strided"}, of_upstream=contiguous, forward=False
    ),
    "rest": known("the rest is not copied: it is zero", rotated="part"),
    "batches": known("the first batch alone is rotated", sequences="few", tensor_format="sbhd"),
    "heads": known("the first head alone is rotated", h=3),
    "one head": Mistake({"h": 1}, doubled_where(lambda t: t.shape[-2] == 1)),
    "float16": Mistake({"dtype": "float16"}, doubled_where(lambda t: t.dtype == torch.float16)),
    "neighbours": known("halves are paired where neighbours are asked for", interleaved=True),
    "features of neighbours": Mistake({"interleaved": True}, exchanged),
    "gradient of neighbours": Mistake({"interleaved": True}, turned_back, forward=False),
    "starts": known("start_positions is ignored", starts="contiguous"),
    "starts of neighbours": known(
        "start_positions is ignored where interleaved", interleaved=True, starts="contiguous"
    ),
    "starts of sequences": known(
        "the first sequence's start serves all", sequences="few", starts="contiguous"
    ),
    "sequences": known("cu_seqlens is ignored: positions count on", tensor_format="thd"),
    "rank": known("cp_rank is ignored", cp=(2, 1)),
    "ranks": known("cp_size is ignored", cp=(2, 1)),
    "chunks": known("a rank's two chunks lie side by side", cp=(3, 2)),
    "backward": known("backward turns the same way as forward", forward=False),
}
ANSWERED = [
    (subset, mistake)
    for subset in (*SUBSETS, "forward alone")
    for mistake, planted in PLANTED.items()
    if all(value in values_of(subset)[name] for name, value in planted.needs.items())
    and (planted.forward or subset != "forward alone")
]


def results(row, mistake, backward=True):
    """Return the output, and the gradient of t, of a row's case."""
    arguments, upstream = draw(ROPE, case_of(row), 0, "cpu")
    arguments["t"].requires_grad_()
    output = mistake.rope(**arguments)
    if not backward:
        return [output.detach()]
    gradients = torch.autograd.grad(output, arguments["t"], mistake.of_upstream(upstream))
    return [output.detach(), *gradients]


def shows(row, mistake, backward):
    """Return whether a result is far from the right one, or the mistake leaves the memory."""
    right = results(row, Mistake({}), backward)
    try:
        wrong = results(row, mistake, backward)
    except NotImplementedError as error:
        return "past the last" in str(error)
    except (AssertionError, RuntimeError, IndexError):
        return True
    return any(
        bool((one.double() - other.double()).abs().max() > 0.1)
        for one, other in zip(right, wrong, strict=True)
        if one.numel()
    )


@pytest.mark.parametrize(("subset", "name"), ANSWERED)
def test_a_mistake_in_an_option_shows_in_the_subset(subset, name):
    backward = subset != "forward alone"
    assert any(shows(row, PLANTED[name], backward) for row in rows_of(subset))


def test_the_right_one_shows_nothing():
    assert not any(shows(row, Mistake({}), True) for row in table())


def test_each_mistake_needs_values_that_there_are():
    assert {name for _, name in ANSWERED} == PLANTED.keys()
