"""torch's operators, counted by the shapes of what they read and write."""

from __future__ import annotations

import torch

from common.sandbox.counted.call import Operators


def operators(call):
    steps = []
    with Operators(steps.append):
        call()
    return [(step["operator"], step["read"], step["written"]) for step in steps]


LARGE = (4096, 1024)


def test_views_and_empty_memory_cost_nothing():
    assert operators(lambda: torch.empty(LARGE).view(-1)[::2].unsqueeze(0)) == []


def test_repeated_elements_are_read_once():
    x, row = torch.empty(LARGE), torch.empty(1, 1024)
    assert operators(lambda: x * row.expand(LARGE)) == [
        ("mul", 4 * (4096 * 1024 + 1024), 4 * 4096 * 1024)
    ]
    assert operators(lambda: x * x) == [("mul", 4 * 4096 * 1024, 4 * 4096 * 1024)]


def test_a_gather_reads_what_it_returns():
    x, at = torch.empty(LARGE), torch.arange(2048)
    assert operators(lambda: x[at]) == [("index", 8 * 1024 * 1024 + 2048 * 8, 8 * 1024 * 1024)]


def test_sizes_that_depend_on_values_are_true():
    x, mask = torch.empty(LARGE), torch.arange(4096) < 3000
    steps = operators(lambda: x[mask])
    assert steps[-1][2] == 3000 * 1024 * 4


def test_large_results_are_not_computed():
    x = torch.full(LARGE, 2.0)
    with Operators(lambda step: None):
        large, small = x + 1, torch.ones(3) + 1
    assert not large.equal(x + 1) and small.tolist() == [2, 2, 2]
