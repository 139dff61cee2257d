"""Inputs that move in place: what lies where, with how much memory, and what shows in the end."""

from __future__ import annotations

import pytest
import torch

from common.arena import is_shifted, shifted, storage_bytes
from common.sandbox import rotation
from common.sandbox.rotation import Changing, Shifts, rotate


def changing(x, unit=1):
    return Changing(x, storage_bytes(x).view(-1, x.itemsize), unit)


@pytest.mark.parametrize("count", [1, 2, 7, 24])
def test_every_rotation_is_a_roll(count):
    drawn = torch.arange(count, dtype=torch.int16)
    for distance in range(1, count + 1):
        memory, buffer = drawn.clone(), torch.empty(2 * distance, dtype=torch.uint8)
        rotate(storage_bytes(memory).view(-1, 2), distance, buffer)
        assert torch.equal(memory, drawn.roll(-distance))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_after_many_shifts_the_bits_are_those_that_were_drawn(monkeypatch, dtype):
    monkeypatch.setattr(rotation, "PIECE", 64)
    drawn = [torch.randn(sizes).to(dtype) for sizes in (500, 8, (3, 7), 0, 1)]
    inputs = [each.clone() for each in drawn]
    several = [changing(each, 7 if each.dim() > 1 else 1) for each in inputs]
    assert [each.large for each in several] == [True, False, False, False, False]
    ours, seen = Shifts([several, []]), set()
    for _ in range(50):
        versions = [each._version for each in inputs]
        ours.shift()
        total, other = ours.totals
        assert other == 0, "a call without inputs has none to move"
        for each, before, part in zip(inputs, drawn, several, strict=True):
            assert torch.equal(storage_bytes(each), shifted(before, total * part.unit))
            assert is_shifted(storage_bytes(each), before, total * part.unit)
        assert all(each._version > v for each, v in zip(inputs, versions, strict=True))
        seen.add(total % 500)
    assert len(seen) > 10


def test_a_large_input_takes_the_memory_of_one_piece(monkeypatch):
    monkeypatch.setattr(rotation, "PIECE", 64)
    ours = Shifts([[changing(torch.zeros(500)), changing(torch.zeros(900))] for _ in range(2)])
    held = [*ours._twice, *ours._halves, ours._piece]
    assert sum(each.numel() for each in held) == rotation.PIECE
    for _ in range(30):
        assert rotation.PIECE / 2 < 4 * rotation._drawn(ours._calls[0]) <= rotation.PIECE


def test_a_changed_element_shows_after_any_number_of_shifts():
    drawn = torch.randn(40)
    x = drawn.clone()
    ours = Shifts([[changing(x)]])
    for _ in range(3):
        ours.shift()
    memory = storage_bytes(x)
    assert is_shifted(memory, drawn, ours.totals[0])
    assert not is_shifted(memory, drawn, ours.totals[0] + 1)
    x.view(torch.int32)[5] ^= 1
    for _ in range(3):
        ours.shift()
    assert not is_shifted(memory, drawn, ours.totals[0])


def test_bits_are_compared_and_not_values():
    drawn = torch.tensor([float("nan"), 0.0])
    assert is_shifted(storage_bytes(drawn.clone()), drawn, 0)
    assert not is_shifted(storage_bytes(-drawn), drawn, 0)
