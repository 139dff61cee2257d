"""Common mistakes in `rope_qk`: of both tensors, as in `rope`, and of one of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from common.ops import rope
from common.ops.mistakes.rope import MISTAKES as OF_ROPE
from common.spec import Reference

SHARED = (
    "the sine has the other sign",
    "cos and sin are exchanged",
    "cos and sin are rounded to bfloat16",
    "halves are paired where neighbours are asked for",
    "neighbours are paired where halves are asked for",
    "the rest is rotated too",
    "the rest is not copied: it is zero",
    "each token takes the angles of the next position",
    "each token takes the angles of position 0",
    "the batch stands for the position",
    "bshd is read as sbhd",
    "sbhd is read as bshd",
    "backward turns the same way as forward",
    "backward takes a feature's own sine",
)
"""The mistakes of `rope` that a kernel of both tensors makes in both."""


def turned(of_q: Reference, of_k: Reference) -> Reference:
    """Return the op made of a `rope` for q and a `rope` for k."""

    def call(q: Tensor, k: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        options |= {"cp_size": 1, "cp_rank": 0}
        return of_q(t=q, **options), of_k(t=k, **options)

    return call


def exchanged(q: Tensor, k: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the outputs in the other order.

    Raises:
        NotImplementedError: k has heads of another number.
    """
    if q.shape != k.shape:
        raise NotImplementedError("outputs of other shapes")
    outputs: tuple[Tensor, Tensor] = turned(rope.reference, rope.reference)(k, q, **options)
    return outputs


MISTAKES: dict[str, Reference] = {
    **{name: turned(OF_ROPE[name], OF_ROPE[name]) for name in SHARED},
    "k comes back as it is": turned(rope.reference, OF_ROPE["t comes back as it is"]),
    "the outputs are exchanged": exchanged,
}
