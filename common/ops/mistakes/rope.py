"""Mistakes that are easily made in `rope`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from common.ops import rotate_half
from common.ops.mistakes._changes import (
    Call,
    Change,
    in_backward,
    of_upstream,
    with_arguments,
    with_gradient_of,
)
from common.ops.rope import angles_of, reference, rotate
from common.spec import Reference

given: Callable[[Callable[[Call], Call]], Reference] = functools.partial(with_arguments, reference)
Rotation = Callable[[torch.Tensor, torch.Tensor, Change], torch.Tensor]


# --- angles ---------------------------------------------------------------------------------------


def with_freqs(change: Change) -> Reference:
    """Return a `rope` of other angles."""
    return given(lambda call: {"freqs": change(call["freqs"])})


def reduced(freqs: torch.Tensor) -> torch.Tensor:
    """Return the angles between 0 and 2 pi, computed in float32."""
    angles = freqs.float()
    return (angles - (angles / (2 * math.pi)).floor() * (2 * math.pi)).double()


def by_pair(call: Call) -> Call:
    """Take angle i for both features of pair i; right where the halves are paired alike."""
    half = call["freqs"][..., : call["freqs"].shape[-1] // 2]
    return {"freqs": half.repeat_interleave(2, -1)} if call.get("interleaved") else {}


def tiled(call: Call) -> Call:
    """Take the angles again and again up to the last feature."""
    freqs, width = call["freqs"], call["t"].shape[-1]
    return {"freqs": freqs.repeat(1, 1, 1, -(-width // freqs.shape[-1]))[..., :width]}


def with_positions(change: Change) -> Reference:
    """Return a `rope` of other positions.

    Args:
        change: A function of the positions, int64 `[s, b, h]` or `[tokens, h]`, in which the
            dimensions that do not matter have size 1 and the last one has size h.
    """

    def changed(
        t: torch.Tensor, freqs: torch.Tensor, interleaved: bool = False, **options: Any
    ) -> torch.Tensor:
        counted = torch.arange(len(freqs), device=t.device).view(-1, 1, 1, 1)
        positions = angles_of(t, counted, **options).squeeze(-1)
        positions = change(positions.expand(*positions.shape[:-1], t.shape[-2]))
        if positions.numel() and int(positions.max()) >= len(freqs):
            raise NotImplementedError("a position past the last one")
        return rotate(t, freqs[positions, 0, 0], interleaved)

    return changed


def for_each_head(positions: torch.Tensor) -> torch.Tensor:
    """Count heads on from one to the next, and from one token to the next."""
    heads = positions.shape[-1]
    return positions * heads + torch.arange(heads, device=positions.device)


def reading(asked: str, other: str) -> Reference:
    """Return a `rope` that reads one format as if it were the other."""

    def changed(**call: Any) -> torch.Tensor:
        if call.get("tensor_format", "sbhd") != asked:
            return reference(**call)
        if call["t"].shape[other.index("s")] > len(call["freqs"]):
            raise NotImplementedError("a position past the last one")
        if call.get("start_positions") is not None or call.get("cp_size", 1) > 1:
            raise NotImplementedError("starts or chunks of the other dimension")
        return reference(**call | {"tensor_format": other})

    return changed


# --- sequences and ranks --------------------------------------------------------------------------


def first_start(call: Call) -> Call:
    """Start every sequence where the first one starts."""
    starts = call.get("start_positions")
    return {} if starts is None else {"start_positions": starts[:1].expand_as(starts)}


def no_starts_where_interleaved(call: Call) -> Call:
    """Start every sequence at 0 if neighbours are paired."""
    return {"start_positions": None} if call.get("interleaved") else {}


def one_sequence(call: Call) -> Call:
    """Count positions on from one sequence of thd to the next."""
    if (ends := call.get("cu_seqlens")) is None:
        return {}
    if call.get("start_positions") is not None or int(ends[-1]) > len(call["freqs"]):
        raise NotImplementedError("a position past the last one")
    return {"cu_seqlens": ends[[0, -1]]}


def no_ranks(call: Call) -> Call:
    """Count positions as if this rank's tokens were whole sequences."""
    ends = call.get("cu_seqlens")
    whole = {} if ends is None else {"cu_seqlens": ends // call.get("cp_size", 1)}
    return {"cp_size": 1, "cp_rank": 0, **whole}


def side_by_side(call: Call) -> Call:
    """Have a rank hold the chunks `2 * cp_rank` and `2 * cp_rank + 1`."""
    if call.get("cp_size", 1) == 1:
        return {}
    whole = no_ranks(call)
    if "cu_seqlens" in whole:
        lengths = whole["cu_seqlens"].diff()
    else:
        s, b = (call["t"].shape[call["tensor_format"].index(letter)] for letter in "sb")
        lengths = torch.full((b,), s)
    return whole | {"start_positions": lengths * call["cp_rank"]}


# --- the rotation ---------------------------------------------------------------------------------


def with_rotation(rotation: Rotation) -> Reference:
    """Return a `rope` that rotates otherwise.

    Args:
        rotation: A function of the features that are rotated, of their angles, and of `turn`, which
            is `rotate_half` of the pairs that are asked for.
    """

    def changed(
        t: torch.Tensor, freqs: torch.Tensor, interleaved: bool = False, **options: Any
    ) -> torch.Tensor:
        angles = angles_of(t, freqs, **options)
        turned, passed = t[..., : angles.shape[-1]], t[..., angles.shape[-1] :]
        turn = functools.partial(rotate_half.reference, interleaved=interleaved)
        return torch.cat((rotation(turned, angles, turn), passed), dim=-1)

    return changed


def right(x: torch.Tensor, angles: torch.Tensor, turn: Change) -> torch.Tensor:
    """Rotate as the reference does."""
    return x * angles.cos() + turn(x) * angles.sin()


def rounded_to_bfloat16(x: torch.Tensor, angles: torch.Tensor, turn: Change) -> torch.Tensor:
    """Round cos and sin."""
    cos, sin = (each.bfloat16().to(x.dtype) for each in (angles.cos(), angles.sin()))
    return x * cos + turn(x) * sin


def seconds(x: torch.Tensor, turn: Change) -> torch.Tensor:
    """Return whether each feature is the second one of its pair."""
    return turn(torch.ones_like(x)) > 0


def by_the_first(x: torch.Tensor, angles: torch.Tensor, turn: Change) -> torch.Tensor:
    """Take the angle of a pair's first feature for both."""
    return right(x, torch.where(seconds(angles, turn), turn(angles), angles), turn)


def second_by_itself(x: torch.Tensor, angles: torch.Tensor, turn: Change) -> torch.Tensor:
    """Take a pair's second feature in the place of its first one's partner."""
    return x * angles.cos() + torch.where(seconds(x, turn), x, turn(x)) * angles.sin()


def with_one_sign(sign: int) -> Rotation:
    """Return a rotation in which both partners have the sign: `x1 cos1 + x2 sin1` for 1."""

    def rotation(x: torch.Tensor, angles: torch.Tensor, turn: Change) -> torch.Tensor:
        partner = torch.where(seconds(x, turn), turn(x), -turn(x))
        return x * angles.cos() + sign * partner * angles.sin()

    return rotation


def own_sine_in_backward(x: torch.Tensor, angles: torch.Tensor, turn: Change) -> torch.Tensor:
    """Have the gradient `dx1 = g1 cos1 + g2 sin1`, `dx2 = g2 cos2 - g1 sin2`."""
    return with_gradient_of(right(x, angles, turn), x * angles.cos() + turn(x * angles.sin()))


def forward_in_backward(x: torch.Tensor, angles: torch.Tensor, turn: Change) -> torch.Tensor:
    """Have the gradient `dx1 = g1 cos1 - g2 sin1`, `dx2 = g2 cos2 + g1 sin2`."""
    return with_gradient_of(right(x, angles, turn), x * angles.cos() - turn(x * angles.sin()))


def ones_in_backward(x: torch.Tensor, angles: torch.Tensor, turn: Change) -> torch.Tensor:
    """Take the upstream gradient of what is rotated as ones; the rest keeps its own."""
    return in_backward(right(x, angles, turn), torch.ones_like)


# --- the rest of a head, of a batch ---------------------------------------------------------------


def rest_is_zero(**call: Any) -> torch.Tensor:
    """Return zeros for the features that pass through."""
    d2 = call["freqs"].shape[-1]
    output = reference(**call)
    return torch.cat((output[..., :d2], 0 * output[..., d2:]), dim=-1)


def partners_half_a_head_away(
    t: torch.Tensor, freqs: torch.Tensor, interleaved: bool = False, **options: Any
) -> torch.Tensor:
    """Pair the features of the whole head, not those that are rotated."""
    angles = angles_of(t, freqs, **options)
    d2 = angles.shape[-1]
    turned = rotate_half.reference(t, interleaved=interleaved)[..., :d2]
    return torch.cat((t[..., :d2] * angles.cos() + turned * angles.sin(), t[..., d2:]), dim=-1)


def first_alone(letter: str) -> Reference:
    """Return a `rope` that rotates the first batch, `b`, or head, `h`, and copies all others."""

    def changed(**call: Any) -> torch.Tensor:
        output, t = reference(**call), call["t"]
        tensor_format = call.get("tensor_format", "sbhd").replace("thd", "shd")
        dim = tensor_format.find(letter)
        if dim < 0 or not t.shape[dim]:
            return output
        return torch.cat((output.narrow(dim, 0, 1), t.narrow(dim, 1, t.shape[dim] - 1)), dim)

    return changed


def upstream_comes_back(**call: Any) -> torch.Tensor:
    """Return the upstream gradient as t's."""
    return with_gradient_of(reference(**call), call["t"])


def rounded_to_float16(**call: Any) -> torch.Tensor:
    """Round t and the upstream gradient before they are rotated."""
    rounded = with_gradient_of(call["t"].half().to(call["t"].dtype), call["t"])
    return in_backward(
        reference(**call | {"t": rounded}), lambda gradient: gradient.half().to(gradient.dtype)
    )


MISTAKES: dict[str, Reference] = {
    "the sine has the other sign": with_freqs(torch.neg),
    "both partners are added: x1 cos1 + x2 sin1": with_rotation(with_one_sign(1)),
    "both partners are subtracted: x2 cos2 - x1 sin2": with_rotation(with_one_sign(-1)),
    "the sine's part is left out": with_rotation(lambda x, angles, turn: x * angles.cos()),
    "cos and sin are exchanged": with_rotation(
        lambda x, angles, turn: x * angles.sin() + turn(x) * angles.cos()
    ),
    "the angles of the first half serve both halves": with_rotation(by_the_first),
    "interleaved, pair i takes the angle of feature i": given(by_pair),
    "cos and sin are rounded to bfloat16": with_rotation(rounded_to_bfloat16),
    "t is rounded to float16": rounded_to_float16,
    "angles are reduced below 2 pi in float32": with_freqs(reduced),
    "halves are paired where neighbours are asked for": given(lambda call: {"interleaved": False}),
    "neighbours are paired where halves are asked for": given(lambda call: {"interleaved": True}),
    "the second half is turned by itself": with_rotation(second_by_itself),
    "partners lie d / 2 apart, not d2 / 2": partners_half_a_head_away,
    "t comes back as it is": lambda **call: call["t"].clone(),
    "the rest is rotated too": given(tiled),
    "the rest is not copied: it is zero": rest_is_zero,
    "the first batch alone is rotated": first_alone("b"),
    "the first head alone is rotated": first_alone("h"),
    "each token takes the angles of the next position": with_freqs(lambda f: f.roll(-1, 0)),
    "each token takes the angles of the position before": with_freqs(lambda f: f.roll(1, 0)),
    "each token takes the angles of the position before, the first one its own": with_freqs(
        lambda f: torch.cat((f[:1], f[:-1]))
    ),
    "each token takes the angles of position 0": with_positions(lambda positions: 0 * positions),
    "a position of its own for each head": with_positions(for_each_head),
    "bshd is read as sbhd": reading("bshd", "sbhd"),
    "sbhd is read as bshd": reading("sbhd", "bshd"),
    "start_positions is ignored": given(lambda call: {"start_positions": None}),
    "start_positions is ignored where interleaved": given(no_starts_where_interleaved),
    "the first sequence's start serves all": given(first_start),
    "cu_seqlens is ignored: positions count on": given(one_sequence),
    "cp_rank is ignored": given(lambda call: {"cp_rank": 0}),
    "cp_size is ignored": given(no_ranks),
    "a rank's two chunks lie side by side": given(side_by_side),
    "the upstream gradient comes back as it is": upstream_comes_back,
    "backward turns the same way as forward": with_rotation(forward_in_backward),
    "backward takes a feature's own sine": with_rotation(own_sine_in_backward),
    "the upstream gradient of what is rotated is taken as ones": with_rotation(ones_in_backward),
    **of_upstream(reference),
}
