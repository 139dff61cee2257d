"""`rope`'s cases, and its reference held against one written token by token."""

import random
from collections import Counter
from itertools import pairwise, product
from math import prod

import pytest
import torch

from common.ops._rope_cases import RopeCase
from common.ops.rope import OP, draw, reference
from common.spec import DIRECTIONS
from tests.support.draws import drawn

SMOKE = list(OP.cases("smoke"))
every_case = pytest.mark.parametrize("case", SMOKE, ids=[case.name for case in SMOKE])

# --- rope's cases ---------------------------------------------------------------------------------


def test_ropes_matrix_is_the_grid_of_the_seed():
    matrix = list(OP.cases("matrix"))
    sizes = range(128, 1984 + 1, 64)
    grid = set(product(("sbhd", "bshd"), (1, 2, 4, 8, 16, 32, 64), sizes, sizes))
    assert len(matrix) == len(grid) == 12_600
    assert {(c.tensor_format, c.b, c.s, c.d) for c in matrix} == grid
    assert all(c.d2 == c.d // 2 and c.dtype == "float32" and c.scale == 100.0 for c in matrix)
    assert all(
        c.angles == "random" and not c.interleaved and c.track_of("forward") == "core"
        for c in matrix
    )


def test_twins_keep_the_widths():
    for case in OP.cases("board"):
        assert (OP.twin(case).d, OP.twin(case).d2) == (case.d, case.d2)


def test_ropes_matrix_goes_round_three_counts_of_heads():
    matrix = list(OP.cases("matrix"))
    assert {case.h for case in matrix} == {1, 2, 10}
    assert all(case.h == 1 or prod(case.shape) <= 2**26 for case in matrix)
    small = Counter(case.h for case in matrix if 10 * case.s * case.b * case.d <= 2**26)
    assert max(small.values()) - min(small.values()) < 0.02 * small.total()
    middling = {c.h for c in matrix if 2 * c.s * c.b * c.d <= 2**26 < 10 * c.s * c.b * c.d}
    assert middling == {1, 2}


def test_ropes_board_holds_the_shapes_of_the_seeds_and_of_today():
    seeds = [
        ("sbhd", (16384, 1, 8, 256), 256, "float32", "gpu", False),
        ("sbhd", (1152, 16, 10, 512), 256, "float32", "gpu", False),
        ("sbhd", (64, 1, 16, 64), 32, "float32", "host", False),
        ("sbhd", (128, 1, 16, 128), 64, "float32", "host", False),
        ("sbhd", (32, 1, 8, 256), 128, "float32", "host", False),
    ]
    today = [
        ("sbhd", (8192, 2, 32, 128), 128, "bfloat16", "gpu", False),
        ("sbhd", (2048, 4, 32, 128), 128, "bfloat16", "gpu", False),
        ("sbhd", (8192, 2, 32, 128), 64, "bfloat16", "gpu", False),
        ("thd", (16384, 32, 128), 128, "bfloat16", "gpu", False),
        ("thd", (16384, 32, 128), 128, "bfloat16", "gpu", False),
        ("sbhd", (8192, 2, 32, 128), 128, "bfloat16", "gpu", True),
    ]
    board = [case for case in OP.cases("board") if track(case) in ("core", "extended")]
    assert seeds + today == [
        (c.tensor_format, c.shape, c.d2, c.dtype, c.ranked_by, c.interleaved) for c in board
    ]
    assert [case.angles for case in board[:2]] == ["model", "random"]
    assert not any(case.paired for case in board)
    lengths = board[8].lengths
    assert (len(lengths), sum(lengths)) == (64, 16384)
    assert len(set(lengths)) > 20


def test_the_standard_track_is_what_nearly_all_do_in_shapes_of_models():
    cases = [case for case in OP.cases("board") if track(case) == "standard"]
    assert OP.tracks[0] == "standard"
    assert len(cases) == 12
    for case in cases:
        assert case.paired and case.d2 == case.d and case.dtype != "float32"
        assert not (case.interleaved or case.starts or case.lengths) and case.cp_size == 1
    assert {case.tensor_format for case in cases} == {"sbhd", "bshd"}
    assert {case.d for case in cases} == {64, 128, 256}
    assert {8, 16, 32, 64} <= {case.h for case in cases} and min(case.h for case in cases) < 8
    assert {1, 1024, 131072} <= {case.s for case in cases}
    assert {case.s * case.b for case in cases if case.s == 1} == {1, 64}, "decoding"


def test_partial_rotation_and_neighbours_have_small_tracks():
    count = Counter(map(track, OP.cases("board")))
    assert count["partial"] == count["interleaved"] == 3
    for case in OP.cases("board"):
        assert (track(case) == "partial") <= (case.paired and case.d2 < case.d)
        assert (track(case) == "interleaved") <= (case.paired and case.interleaved)


def track(case):
    (found,) = {case.track_of(direction) for direction in DIRECTIONS}
    return found


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
                        for seed, each in enumerate((case, case.varied(dice))))  # fmt: skip
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


@pytest.mark.parametrize("cp_size", [1, 2, 4])
def test_the_ranks_parts_are_parts_of_the_whole(cp_size):
    whole, freqs = torch.randn(16, 2, 3, 8).double(), torch.randn(20, 1, 1, 6).double()
    expected = reference(whole, freqs).chunk(2 * cp_size)
    chunks = whole.chunk(2 * cp_size)
    for rank in range(cp_size):
        mine = (rank, 2 * cp_size - 1 - rank)
        part = torch.cat([chunks[i] for i in mine])
        got = reference(part, freqs, cp_size=cp_size, cp_rank=rank)
        assert torch.equal(got, torch.cat([expected[i] for i in mine]))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
def test_gradient_is_the_derivative(tensor_format, interleaved):
    t = torch.randn(3, 2, 2, 6, dtype=torch.float64, requires_grad=True)
    freqs = torch.randn(5, 1, 1, 4, dtype=torch.float64)
    options = {"tensor_format": tensor_format, "interleaved": interleaved}
    assert torch.autograd.gradcheck(lambda t: reference(t, freqs, **options), t)


def test_backward_takes_the_partners_sine():
    t = torch.randn(1, 1, 1, 2, dtype=torch.float64, requires_grad=True)
    freqs, upstream = torch.tensor([0.3, 1.1]).double(), torch.tensor([2.0, -5.0]).double()
    output = reference(t, freqs.view(1, 1, 1, 2))
    (gradient,) = torch.autograd.grad(output, t, upstream.view(1, 1, 1, 2))
    (g1, g2), (cos1, cos2), (sin1, sin2) = upstream, freqs.cos(), freqs.sin()
    expected = torch.stack((g1 * cos1 + g2 * sin2, g2 * cos2 - g1 * sin1))
    torch.testing.assert_close(gradient.flatten(), expected)
    assert abs(sin1 - sin2) > 0.1


def test_where_there_are_many_sequences_some_past_the_64th_have_tokens():
    """A kernel that searches 64 of them in one block would pass otherwise."""
    several = [case for case in SMOKE if len(case.lengths) > 64]
    assert len(several) > 3
    assert all(any(case.lengths[64:]) for case in several)


def test_the_seeds_kind_has_two_cases():
    """Powers of two, one batch and half of the width: lkm2835's first kernel takes no other."""
    several = [
        case for case in SMOKE
        if case.track_of("forward") in ("core", "partial") and case.b == 1 and 2 * case.d2 == case.d
        and all(size > 1 and size & (size - 1) == 0 for size in (case.s, case.h))
    ]  # fmt: skip
    assert len(several) >= 2


def test_there_are_not_too_many_smoke_cases():
    """Every solution is asked each of them in the interpreter."""
    assert len(SMOKE) <= 160
