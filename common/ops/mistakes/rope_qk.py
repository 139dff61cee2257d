"""Common mistakes in `rope_qk`: those of `rope`, in both tensors, and of one of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from common.ops import rope
from common.ops.mistakes.rope import MISTAKES as OF_ROPE
from common.ops.mistakes.rope import OF_SEQUENCES
from common.spec import Reference


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
    **{
        name: turned(mistake, mistake)
        for name, mistake in OF_ROPE.items()
        if name not in OF_SEQUENCES  # which this op has no options for
    },
    "k comes back as it is": turned(rope.reference, OF_ROPE["t comes back as it is"]),
    "the outputs are exchanged": exchanged,
}
