"""`rope`'s cases, and its reference held against one written token by token."""

import random
from collections import Counter
from itertools import pairwise, product
from math import prod

import pytest
import torch

from common.ops.rope import OP, RopeCase, draw, reference
from common.spec import DIRECTIONS
from tests.support.ops import drawn

SMOKE = list(OP.cases("smoke"))
every_case = pytest.mark.parametrize("case", SMOKE, ids=[case.name for case in SMOKE])

# --- rope's cases ---------------------------------------------------------------------------------


def test_ropes_matrix_is_the_grid_of_the_seed():
    matrix = list(OP.cases("matrix"))
    sizes = range(128, 1984 + 1, 64)
    grid = set(product(("sbhd", "bshd"), (1, 2, 4, 8, 16, 32, 64), sizes, sizes))
    assert len(matrix) == len(grid) == 12_600
    assert {(c.tensor_format, c.b, c.s, c.d) for c in matrix} == grid
    assert all(c.d2 == c.d // 2 and c.scale == 100.0 and OP.track_of(c) == "core" for c in matrix)
    assert all(case.h == 1 or prod(case.shape) <= 2**26 for case in matrix)
    small = Counter(case.h for case in matrix if 10 * case.s * case.b * case.d <= 2**26)
    assert small.keys() == {1, 2, 10}
    assert max(small.values()) - min(small.values()) < 0.02 * small.total()


def test_ropes_board_has_tracks_of_models_shapes():
    board = list(OP.cases("board"))
    assert Counter(map(OP.track_of, board)) == {
        "standard": 11, "partial": 3, "interleaved": 3, "core": 8, "packed": 3, "extended": 1
    }  # fmt: skip
    standard = [case for case in board if OP.track_of(case) == "standard"]
    assert all(case.dtype != "float32" for case in standard)
    assert {case.tensor_format for case in standard} == {"sbhd", "bshd"}
    assert {case.d for case in standard} == {64, 128, 256}
    assert {1, 1024, 131072} <= {case.s for case in standard}


@every_case
def test_halves_of_freqs_differ_unless_paired(case):
    freqs = drawn(OP, case)["freqs"]
    assert freqs.dtype == torch.float32
    assert freqs.shape[1:] == (1, 1, case.d2)
    half = case.d2 // 2
    first, second = freqs[..., :half], freqs[..., half:]
    if case.interleaved:
        first, second = freqs[..., ::2], freqs[..., 1::2]
    assert torch.equal(first, second) == case.paired


@every_case
def test_there_are_as_many_frequencies_as_the_case_says(case):
    arguments = drawn(OP, case)
    used = max((position for _, position in tokens(**arguments)), default=-1) + 1
    spare = arguments["freqs"].shape[0] - used
    # the first rank has the last chunk of each sequence
    assert spare > 0 if case.spare or case.cp_rank else spare == 0
    if not case.spare and case.cp_rank:
        assert len(arguments["freqs"]) == case.positions * case.cp_size


def test_other_inputs_have_other_angles_in_whatever_way_they_are_made():
    """A table of cosines that is kept by the address of freqs is a wrong one then."""
    dice = random.Random(0)
    for angles in ("random", "model", "paired", "far"):
        case = RopeCase(s=4, b=1, h=1, d=8, d2=8, angles=angles)
        first, other = (draw(each, torch.Generator().manual_seed(seed))["freqs"]
                        for seed, each in enumerate((case, case.changed(dice))))  # fmt: skip
        assert not torch.equal(first, other)


@pytest.mark.parametrize(("angles", "count"), [("model", 24), ("paired", 12)])
def test_minimum_bytes_by_hand(angles, count):
    case = RopeCase(s=4, b=3, h=2, d=8, d2=6, dtype="bfloat16", angles=angles)
    # 192 elements of 2 bytes in and out, 4 x 6 angles of 4 bytes, half of them where they are
    # paired; 144 turned at 3, angles at 2
    for direction in DIRECTIONS:
        assert OP.work(case, direction).bytes == 2 * 192 * 2 + count * 4
        assert OP.work(case, direction).flops == 3 * 144 + 2 * count


# --- rope's reference -----------------------------------------------------------------------------


def tokens(
    t, freqs, tensor_format="sbhd", start_positions=None, cu_seqlens=None, cp_size=1, cp_rank=0,
    interleaved=False,
):  # fmt: skip
    """Yield the index of each token in t, and its position in its whole sequence."""

    def position(sequence, index, length):
        start = 0 if start_positions is None else int(start_positions[sequence])
        if cp_size == 1:
            return start + index
        chunk = length // 2
        if index < chunk:
            return cp_rank * chunk + index
        return (2 * cp_size - 1 - cp_rank) * chunk + (index - chunk)

    if tensor_format == "thd":
        ends = [int(end) // cp_size for end in cu_seqlens]
        for sequence, (begin, end) in enumerate(pairwise(ends)):
            for token in range(begin, end):
                yield (token,), position(sequence, token - begin, end - begin)
        return
    length, sequences = (t.shape[tensor_format.index(axis)] for axis in "sb")
    for index, sequence in product(range(length), range(sequences)):
        place = (index, sequence) if tensor_format == "sbhd" else (sequence, index)
        yield place, position(sequence, index, length)


def by_hand(t, freqs, *, interleaved=False, **options):
    """Rotate every token and pair of features by itself, as the definition says."""
    out = t.clone()
    width = freqs.shape[-1]
    for place, position in tokens(t, freqs, **options):
        angle = freqs[position, 0, 0]
        for i in range(width // 2):
            first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + width // 2)
            x, y = t[place][:, first], t[place][:, second]
            out[place][:, first] = x * angle[first].cos() - y * angle[first].sin()
            out[place][:, second] = y * angle[second].cos() + x * angle[second].sin()
    return out


@every_case
def test_reference_is_the_definition(case):
    arguments = drawn(OP, case)
    arguments |= {name: arguments[name].double() for name in ("t", "freqs")}
    torch.testing.assert_close(reference(**arguments), by_hand(**arguments), rtol=1e-12, atol=1e-12)


def test_smoke_has_many_sequences_ranks_and_shapes_of_powers_of_two():
    """A kernel may search 64 sequences in one block; every solution interprets each smoke case."""
    assert sum(any(case.lengths[64:]) for case in SMOKE) > 3
    powers = [
        case for case in SMOKE
        if OP.track_of(case) in ("core", "partial") and case.b == 1 and 2 * case.d2 == case.d
        and all(size > 1 and size & (size - 1) == 0 for size in (case.s, case.h))
    ]  # fmt: skip
    assert len(powers) >= 2
    assert {case.cp_size for case in SMOKE} == {1, 2, 3, 4, 5}
    assert {12, 24} <= {case.d for case in SMOKE if OP.track_of(case) == "standard"}
    assert len(SMOKE) <= 160
