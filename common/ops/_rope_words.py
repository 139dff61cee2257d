"""Names of a `rope` case's dimensions and properties, for messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import accumulate, pairwise
from typing import Any

from common.ops._rope_cases import RopeCase
from common.ops._views import layout_name
from common.spec import Axes, Axis, Fact

DIMENSIONS = {
    "sbhd": ("position", "batch", "head"),
    "bshd": ("batch", "position", "head"),
    "thd": ("token", "head"),
}


def axes(case: RopeCase, arguments: Mapping[str, Any]) -> Axes:
    """Name the dimensions of the output and of t's gradient, and parts of each dimension."""
    parts = {"position": _chunks(case), "token": _sequences(case)}
    rows = [Axis(name, parts.get(name, {})) for name in DIMENSIONS[case.tensor_format]]
    dimensions = (*rows, Axis("feature", _features(case)))
    return {"output": dimensions, "t": dimensions}


def _features(case: RopeCase) -> dict[str, Collection[int]]:
    d, d2, half = case.d, case.d2, case.d2 // 2
    first, second = range(half), range(half, d2)
    names = "the first half of the rotated features", "the second half of the rotated features"
    if case.interleaved:
        first, second = range(0, d2, 2), range(1, d2, 2)
        names = "the first of each pair", "the second of each pair"
    halves = dict(zip(names, (first, second), strict=True))
    return {**halves, "the rotated features": range(d2), "the unrotated features": range(d2, d)}


def _chunks(case: RopeCase) -> dict[str, Collection[int]]:
    if case.cp_size == 1:
        return {}
    half = case.s // 2
    return {"this rank's first chunk": range(half), "its second chunk": range(half, case.s)}


def _sequences(case: RopeCase) -> dict[str, Collection[int]]:
    starts = [0, *accumulate(length // case.cp_size for length in case.lengths)]
    sequences = {
        f"sequence {index}": range(start, end)
        for index, (start, end) in enumerate(pairwise(starts))
        if start < end
    }
    firsts = {sequence[0] for sequence in sequences.values()}
    groups = {
        "the first token of each sequence": firsts,
        "all but the first token of each sequence": set(range(starts[-1])) - firsts,
        "all but the first sequence": range(starts[1], starts[-1]) if starts[1:] else (),
    }
    return {**sequences, **groups}


def facts(case: RopeCase) -> dict[str, Fact]:
    """Return the case's properties.

    In a thd case `s` is the longest sequence and `b` the number of sequences.
    """
    return {
        "s": case.positions,
        "b": len(case.lengths) or case.b,
        "h": case.h,
        "d": case.d,
        "d2": case.d2,
        "dtype": case.dtype,
        "tensor_format": case.tensor_format,
        "interleaved": case.interleaved,
        "start_positions": "given" if case.starts else "None",
        "cp_size": case.cp_size,
        "cp_rank": case.cp_rank,
        "t": layout_name(case.shape, case.layout),
        "freqs": case.freqs_layout,
        "cu_seqlens": case.ends_layout,
        "the layout of start_positions": case.starts_layout,
        "upstream": layout_name(case.shape, case.upstream),
        "angles": case.angles,
        "s2": "past the last position" if case.spare else "the number of positions",
        "values": case.values,
        "upstream's values": case.upstream_values,
        "scale": case.scale,
        "apart": case.apart,
    }
