"""Common mistakes in `rope`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from common.ops import rotate_half
from common.ops.mistakes._changes import Call, Change, Changes, in_backward, with_gradient_of
from common.ops.rope import angles_of, reference, rotate
from common.spec import Reference

change = Changes(reference)


# --- positions ------------------------------------------------------------------------------------


class Places(NamedTuple):
    """The indices of t's heads, each broadcastable to t's shape without the features."""

    options: Call
    position: Tensor
    row: Tensor
    """The index among all tokens, in the order of memory."""
    token: Tensor
    """The index within its sequence."""
    batch: Tensor
    head: Tensor
    lengths: Tensor
    """The number of this rank's tokens of each sequence."""

    def start(self, batch: Tensor) -> Tensor:
        """Return the start position of a sequence."""
        starts: Tensor | None = self.options.get("start_positions")
        if starts is None:
            return torch.zeros_like(batch)
        if batch.numel() and int(batch.max()) >= len(starts):
            raise NotImplementedError("a sequence past the last one")
        return starts[batch]

    def of(self, token: Tensor, batch: Tensor) -> Tensor:
        """Return the position of a token of a sequence."""
        if self.options["cp_size"] > 1:
            raise NotImplementedError("a token of another chunk")
        return token + self.start(batch)


def with_positions(positions_of: Callable[[Places], Tensor]) -> Reference:
    """Return a `rope` with other positions, broadcastable like `Places`; -1: it copies the head."""

    def changed(t: Tensor, freqs: Tensor, interleaved: bool, **options: Any) -> Tensor:
        def indices(count: int, *shape: int) -> Tensor:
            return torch.arange(count, device=t.device).view(-1, *shape)

        position = angles_of(t, indices(len(freqs), 1, 1, 1), **options).squeeze(-1)
        token, batch, head = indices(len(t), 1, 1), indices(t.shape[1], 1), indices(t.shape[-2])
        row = token * t.shape[1] + batch
        if options["tensor_format"] == "bshd":
            token, batch = batch, token
        lengths = torch.full_like(batch, token.numel()).flatten()
        if options["tensor_format"] == "thd":
            ends, row = options["cu_seqlens"] // options["cp_size"], token[..., 0]
            batch, lengths = torch.searchsorted(ends, row, right=True) - 1, ends.diff()
            token = row - ends[batch]
        places = Places(options, position, row, token, batch, head, lengths)
        positions = positions_of(places).expand(t.shape[:-1])
        if positions.numel() and int(positions.max()) >= len(freqs):
            raise NotImplementedError("a position past the last one")
        angles = freqs[positions.clamp(min=0), 0, 0].masked_fill((positions < 0)[..., None], 0)
        return rotate(t, angles, interleaved)

    return changed


def one_sequence(call: Call) -> Call:
    """Continue positions from one thd sequence to the next."""
    if "cu_seqlens" not in call:
        return {}
    ends = call["cu_seqlens"]
    if "start_positions" in call or int(ends[-1]) > len(call["freqs"]):
        raise NotImplementedError("a position past the last one")
    return {"cu_seqlens": ends[[0, -1]]}


# --- the rotation ---------------------------------------------------------------------------------


Rotation = Callable[[Tensor, Tensor, Change], Tensor]
"""A function of the rotated features, their angles, and `rotate_half` with the call's pairing."""


def with_rotation(rotation: Rotation, rest: Change = torch.clone) -> Reference:
    """Return a `rope` with another rotation, or with `rest` of the features that pass through."""

    def changed(t: Tensor, freqs: Tensor, interleaved: bool, **options: Any) -> Tensor:
        angles = angles_of(t, freqs, **options)
        rotated, passed = t[..., : angles.shape[-1]], t[..., angles.shape[-1] :]
        turn = functools.partial(rotate_half.reference, interleaved=interleaved)
        return torch.cat((rotation(rotated, angles, turn), rest(passed)), dim=-1)

    return changed


def right(x: Tensor, a: Tensor, turn: Change) -> Tensor:
    """Rotate as the reference does."""
    return x * a.cos() + turn(x) * a.sin()


def signs(x: Tensor, turn: Change) -> Tensor:
    """Return -1 for the first feature of each pair and 1 for the second one."""
    return turn(torch.ones_like(x))


def rounded_to_bfloat16(x: Tensor, a: Tensor, turn: Change) -> Tensor:
    """Round cos and sin to bfloat16."""
    cos, sin = (factor.bfloat16().to(x.dtype) for factor in (a.cos(), a.sin()))
    return x * cos + turn(x) * sin


def forward_in_backward(x: Tensor, a: Tensor, turn: Change) -> Tensor:
    """Compute the gradient as `dx1 = g1 cos1 - g2 sin1`, `dx2 = g2 cos2 + g1 sin2`."""
    return with_gradient_of(right(x, a, turn), x * a.cos() - turn(x * a.sin()))


def rounded_to_float16(values: Tensor) -> Tensor:
    """Round to float16."""
    return values.half().to(values.dtype)


def reduced(freqs: Tensor) -> Tensor:
    """Reduce the angles to between 0 and 2 pi, in float32."""
    angles = freqs.float()
    return (angles - (angles / (2 * math.pi)).floor() * (2 * math.pi)).double()


def wider(widen: Callable[[Tensor, int], Tensor]) -> Reference:
    """Return a `rope` with as many angles as t has features: `widen(freqs, d)`."""
    return change.call(lambda call: {"freqs": widen(call["freqs"], call["t"].shape[-1])})


other_sign = change.arguments(torch.neg, "freqs")
other_turn = with_rotation(forward_in_backward)
no_starts = change.given(start_positions=None)
half = Changes(change.arguments(lambda t: with_gradient_of(rounded_to_float16(t), t), "t"))
adjacent, halves = (Changes(change.given(interleaved=each)) for each in (True, False))
OF_SEQUENCES: dict[str, Reference] = {
    "the head stands for the batch in start_positions": with_positions(
        lambda at: at.position - at.start(at.batch) + at.start(at.head)
    ),
    "the position stands for the batch in start_positions": with_positions(
        lambda at: at.position - at.start(at.batch) + at.start(at.token)
    ),
    "start_positions is ignored": no_starts,
    "start_positions is ignored where interleaved": change.where(no_starts, interleaved=True),
    "the first sequence's start serves all": change.arguments(
        lambda starts: starts[:1].expand_as(starts), "start_positions"
    ),
    "cu_seqlens is ignored: positions count on": change.call(one_sequence),
    "cp_rank is ignored": change.given(cp_rank=0),
    "cp_size is ignored": with_positions(lambda at: at.token + at.start(at.batch)),
    "a rank's two chunks lie side by side": with_positions(
        lambda at: at.token + at.start(at.batch) + at.options["cp_rank"] * at.lengths[at.batch]
    ),
}
"""Those with start positions, packed sequences or context parallelism."""

MISTAKES: dict[str, Reference] = {
    "the sine has the other sign": other_sign,
    "the sine has the other sign where interleaved": change.where(other_sign, interleaved=True),
    "both partners are added: x1 cos1 + x2 sin1": with_rotation(
        lambda x, a, turn: x * a.cos() + signs(x, turn) * turn(x) * a.sin()
    ),
    "both partners are subtracted: x2 cos2 - x1 sin2": with_rotation(
        lambda x, a, turn: x * a.cos() - signs(x, turn) * turn(x) * a.sin()
    ),
    "the sine's part is left out": with_rotation(lambda x, a, turn: x * a.cos()),
    "cos and sin are exchanged": with_rotation(lambda x, a, turn: x * a.sin() + turn(x) * a.cos()),
    "the angles of the first half serve both halves": with_rotation(
        lambda x, a, turn: right(x, torch.where(signs(a, turn) > 0, turn(a), a), turn)
    ),
    "interleaved, pair i takes the angle of feature i": change.where(
        change.arguments(lambda f: f[..., : f.shape[-1] // 2].repeat_interleave(2, -1), "freqs"),
        interleaved=True,
    ),
    "cos and sin are rounded to bfloat16": with_rotation(rounded_to_bfloat16),
    "t is rounded to float16": half.upstream(rounded_to_float16),
    "angles are reduced below 2 pi in float32": change.arguments(reduced, "freqs"),
    "halves are paired where neighbours are asked for": change.given(interleaved=False),
    "neighbours are paired where halves are asked for": change.given(interleaved=True),
    "the pairs are adjacent features, the angles those of the halves": adjacent.arguments(
        lambda f: f.unflatten(-1, (2, -1)).mT.flatten(-2), "freqs"
    ),
    "the pairs are features of the halves, the angles those of adjacent ones": halves.arguments(
        lambda f: f.unflatten(-1, (-1, 2)).mT.flatten(-2), "freqs"
    ),
    "the second half is turned by itself": with_rotation(
        lambda x, a, turn: x * a.cos() + torch.where(signs(x, turn) > 0, x, turn(x)) * a.sin()
    ),
    "partners lie d / 2 apart, not d2 / 2": wider(
        lambda freqs, d: pad(freqs, (0, d - freqs.shape[-1]))
    ),
    "t comes back as it is": lambda **call: call["t"].clone(),
    "the rest is rotated too": wider(lambda freqs, d: freqs.tile(d)[..., :d]),
    "the rest is not copied: it is zero": with_rotation(right, torch.zeros_like),
    "the first batch alone is rotated": with_positions(
        lambda at: at.position.where((at.batch == 0) | ("cu_seqlens" in at.options), -1)
    ),
    "the first head alone is rotated": with_positions(
        lambda at: at.position.where(at.head == 0, -1)
    ),
    "each token takes the angles of the next position": change.arguments(
        lambda f: f.roll(-1, 0), "freqs"
    ),
    "each token takes the angles of the position before": change.arguments(
        lambda f: f.roll(1, 0), "freqs"
    ),
    "each token takes the angles of the position before, the first one its own": change.arguments(
        lambda f: torch.cat((f[:1], f[:-1])), "freqs"
    ),
    "each token takes the angles of position 0": with_positions(lambda at: 0 * at.position),
    "a position of its own for each head": with_positions(
        lambda at: at.position * len(at.head) + at.head
    ),
    "the head stands for the position": with_positions(lambda at: at.of(at.head, at.batch)),
    "the batch stands for the position": with_positions(lambda at: at.of(at.batch, at.batch)),
    "rows of sbhd are counted as those of bshd: row % s": change.where(
        with_positions(lambda at: at.of(at.row % len(at.token), at.row // len(at.token))),
        tensor_format="sbhd",
    ),
    "rows of bshd are counted as those of sbhd: row // b": change.where(
        with_positions(lambda at: at.of(at.row // len(at.batch), at.row % len(at.batch))),
        tensor_format="bshd",
    ),
    **{
        f"{one} is read as {other}": change.where(
            with_positions(lambda at: at.of(at.batch, at.token)), tensor_format=one
        )
        for one, other in (("bshd", "sbhd"), ("sbhd", "bshd"))
    },
    **OF_SEQUENCES,
    "the upstream gradient comes back as it is": (
        lambda **call: with_gradient_of(reference(**call), call["t"])
    ),
    "backward turns the same way as forward": other_turn,
    "backward turns the same way as forward where interleaved": change.where(
        other_turn, interleaved=True
    ),
    "backward takes a feature's own sine": with_rotation(
        lambda x, a, turn: with_gradient_of(right(x, a, turn), x * a.cos() + turn(x * a.sin()))
    ),
    "the upstream gradient of what is rotated is taken as ones": with_rotation(
        lambda x, a, turn: in_backward(right(x, a, turn), torch.ones_like)
    ),
    **change.of_upstream(),
}
