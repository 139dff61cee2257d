"""Common mistakes in `rope`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common.ops import rotate_half
from common.ops.mistakes._changes import Call, Change, Changes, in_backward, with_gradient_of
from common.ops.rope import angles_of, reference, rotate
from common.spec import Reference

change = Changes(reference)


def where_interleaved(mistake: Reference) -> Reference:
    """Return a `rope` that makes the mistake only where interleaved."""
    return lambda **call: (mistake if call["interleaved"] else reference)(**call)


def reduced(freqs: Tensor) -> Tensor:
    """Reduce the angles to between 0 and 2 pi, in float32."""
    angles = freqs.float()
    return (angles - (angles / (2 * math.pi)).floor() * (2 * math.pi)).double()


class Places(NamedTuple):
    """The indices of t's heads, each broadcastable to `[s, b, h]`, or to t's order of those."""

    options: Call
    position: Tensor
    token: Tensor
    """The index within its sequence."""
    batch: Tensor
    head: Tensor

    def of(self, token: Tensor, batch: Tensor) -> Tensor:
        """Return the position of a token of a sequence."""
        if self.options["cp_size"] > 1:
            raise NotImplementedError("a token of another chunk")
        return token + self.start(batch)

    def start(self, batch: Tensor) -> Tensor:
        """Return the start position of a sequence."""
        starts = self.options.get("start_positions")
        if starts is None or not batch.numel():
            return torch.zeros_like(batch)
        if int(batch.max()) >= len(starts):
            raise NotImplementedError("a sequence past the last one")
        own: Tensor = starts[batch]
        return own


def with_positions(positions_of: Callable[[Places], Tensor]) -> Reference:
    """Return a `rope` with other positions, broadcastable like `Places`."""

    def changed(t: Tensor, freqs: Tensor, interleaved: bool, **options: Any) -> Tensor:
        def indices(count: int, *shape: int) -> Tensor:
            return torch.arange(count, device=t.device).view(-1, *shape)

        position = angles_of(t, indices(len(freqs), 1, 1, 1), **options).squeeze(-1)
        token, batch, head = indices(len(t), 1, 1), indices(t.shape[1], 1), indices(t.shape[-2])
        if options["tensor_format"] == "bshd":
            token, batch = batch, token
        if options["tensor_format"] == "thd":
            ends, row = options["cu_seqlens"] // options["cp_size"], token[..., 0]
            batch = torch.searchsorted(ends, row, right=True) - 1
            token = row - ends[batch]
        positions = positions_of(Places(options, position, token, batch, head)).expand(t.shape[:-1])
        if positions.numel() and int(positions.max()) >= len(freqs):
            raise NotImplementedError("a position past the last one")
        return rotate(t, freqs[positions, 0, 0], interleaved)

    return changed


def counted_as(counted: str, other: str) -> Reference:
    """Return a `rope` that splits the number of a row of one format as a row of the other."""

    def positions_of(at: Places) -> Tensor:
        if at.options["tensor_format"] != counted:
            return at.position
        tokens, batches = at.token.numel(), at.batch.numel()
        if other == "bshd":
            row = at.token * batches + at.batch
            return at.of(row % tokens, row // tokens)
        row = at.batch * tokens + at.token
        return at.of(row // batches, row % batches)

    return with_positions(positions_of)


def reading(requested: str, other: str) -> Reference:
    """Return a `rope` that reads the requested format as the other format."""

    def changed(call: Call) -> Call:
        if call["tensor_format"] != requested:
            return {}
        if call["t"].shape[other.index("s")] > len(call["freqs"]):
            raise NotImplementedError("a position past the last one")
        if "start_positions" in call or call["cp_size"] > 1:
            raise NotImplementedError("starts or chunks of the other dimension")
        return {"tensor_format": other}

    return change.call(changed)


# --- sequences and ranks --------------------------------------------------------------------------


def one_sequence(call: Call) -> Call:
    """Continue positions from one thd sequence to the next."""
    if "cu_seqlens" not in call:
        return {}
    ends = call["cu_seqlens"]
    if "start_positions" in call or int(ends[-1]) > len(call["freqs"]):
        raise NotImplementedError("a position past the last one")
    return {"cu_seqlens": ends[[0, -1]]}


def no_ranks(call: Call) -> Call:
    """Count positions as if this rank held whole sequences."""
    ends = {name: call[name] // call["cp_size"] for name in call if name == "cu_seqlens"}
    return {"cp_size": 1, "cp_rank": 0, **ends}


def side_by_side(call: Call) -> Call:
    """Take the rank's chunks to be `2 * cp_rank` and `2 * cp_rank + 1`."""
    if call["cp_size"] == 1:
        return {}
    local_call = no_ranks(call)
    if "cu_seqlens" in local_call:
        lengths = local_call["cu_seqlens"].diff()
    else:
        s, b = (call["t"].shape[call["tensor_format"].index(letter)] for letter in "sb")
        lengths = torch.full((b,), s)
    return local_call | {"start_positions": lengths * call["cp_rank"]}


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


# --- features, heads and batches that pass through ------------------------------------------------


def partners_half_a_head_away(
    t: Tensor, freqs: Tensor, interleaved: bool, **options: Any
) -> Tensor:
    """Pair features d / 2 apart instead of d2 / 2."""
    angles = angles_of(t, freqs, **options)
    d2 = angles.shape[-1]
    partners = rotate_half.reference(t, interleaved=interleaved)[..., :d2]
    return torch.cat((t[..., :d2] * angles.cos() + partners * angles.sin(), t[..., d2:]), dim=-1)


def first_alone(letter: str) -> Reference:
    """Return a `rope` that rotates only the first batch (`b`) or head (`h`) and copies the rest."""

    def changed(**call: Any) -> Tensor:
        output, t = reference(**call), call["t"]
        tensor_format = call["tensor_format"].replace("thd", "shd")
        dim = tensor_format.find(letter)
        if dim < 0 or not t.shape[dim]:
            return output
        return torch.cat((output.narrow(dim, 0, 1), t.narrow(dim, 1, t.shape[dim] - 1)), dim)

    return changed


def rounded_to_float16(**call: Any) -> Tensor:
    """Round t and the upstream gradient to float16 before the rotation."""

    def rounded(values: Tensor) -> Tensor:
        return values.half().to(values.dtype)

    t = with_gradient_of(rounded(call["t"]), call["t"])
    return in_backward(reference(**call | {"t": t}), rounded)


no_starts = change.call(lambda call: {"start_positions": None})
MISTAKES: dict[str, Reference] = {
    "the sine has the other sign": change.arguments(torch.neg, "freqs"),
    "the sine has the other sign where interleaved": where_interleaved(
        change.arguments(torch.neg, "freqs")
    ),
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
    "interleaved, pair i takes the angle of feature i": where_interleaved(
        change.arguments(lambda f: f[..., : f.shape[-1] // 2].repeat_interleave(2, -1), "freqs")
    ),
    "cos and sin are rounded to bfloat16": with_rotation(rounded_to_bfloat16),
    "t is rounded to float16": rounded_to_float16,
    "angles are reduced below 2 pi in float32": change.arguments(reduced, "freqs"),
    "halves are paired where neighbours are asked for": change.call(
        lambda call: {"interleaved": False}
    ),
    "neighbours are paired where halves are asked for": change.call(
        lambda call: {"interleaved": True}
    ),
    "the second half is turned by itself": with_rotation(
        lambda x, a, turn: x * a.cos() + torch.where(signs(x, turn) > 0, x, turn(x)) * a.sin()
    ),
    "partners lie d / 2 apart, not d2 / 2": partners_half_a_head_away,
    "t comes back as it is": lambda **call: call["t"].clone(),
    "the rest is rotated too": change.call(
        lambda call: {"freqs": call["freqs"].tile(call["t"].shape[-1])[..., : call["t"].shape[-1]]}
    ),
    "the rest is not copied: it is zero": with_rotation(right, torch.zeros_like),
    "the first batch alone is rotated": first_alone("b"),
    "the first head alone is rotated": first_alone("h"),
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
    "the head stands for the batch in start_positions": with_positions(
        lambda at: at.position - at.start(at.batch) + at.start(at.head)
    ),
    "the position stands for the batch in start_positions": with_positions(
        lambda at: at.position - at.start(at.batch) + at.start(at.token)
    ),
    "rows of sbhd are counted as those of bshd: row % s": counted_as("sbhd", "bshd"),
    "rows of bshd are counted as those of sbhd: row // b": counted_as("bshd", "sbhd"),
    "bshd is read as sbhd": reading("bshd", "sbhd"),
    "sbhd is read as bshd": reading("sbhd", "bshd"),
    "start_positions is ignored": no_starts,
    "start_positions is ignored where interleaved": where_interleaved(no_starts),
    "the first sequence's start serves all": change.arguments(
        lambda starts: starts[:1].expand_as(starts), "start_positions"
    ),
    "cu_seqlens is ignored: positions count on": change.call(one_sequence),
    "cp_rank is ignored": change.call(lambda call: {"cp_rank": 0}),
    "cp_size is ignored": change.call(no_ranks),
    "a rank's two chunks lie side by side": change.call(side_by_side),
    "the upstream gradient comes back as it is": (
        lambda **call: with_gradient_of(reference(**call), call["t"])
    ),
    "backward turns the same way as forward": with_rotation(forward_in_backward),
    "backward turns the same way as forward where interleaved": where_interleaved(
        with_rotation(forward_in_backward)
    ),
    "backward takes a feature's own sine": with_rotation(
        lambda x, a, turn: with_gradient_of(right(x, a, turn), x * a.cos() + turn(x * a.sin()))
    ),
    "the upstream gradient of what is rotated is taken as ones": with_rotation(
        lambda x, a, turn: in_backward(right(x, a, turn), torch.ones_like)
    ),
    **change.of_upstream(),
}
