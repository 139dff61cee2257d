"""Common mistakes in `rotate_half`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from common.ops.mistakes._changes import Changes, with_gradient_of
from common.ops.rotate_half import reference
from common.spec import Reference


def of_pairs(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Reference:
    """Return a `rotate_half` that replaces each pair `(x1, x2)` by `change(x1, x2)`."""

    def changed(x: Tensor, interleaved: bool = False) -> Tensor:
        if interleaved:
            return torch.stack(change(x[..., ::2], x[..., 1::2]), dim=-1).flatten(-2)
        return torch.cat(change(*x.chunk(2, dim=-1)), dim=-1)

    return changed


change = Changes(reference)
MISTAKES: dict[str, Reference] = {
    "the other half is negated: [x2, -x1]": of_pairs(lambda x1, x2: (x2, -x1)),
    "nothing is negated: [x2, x1]": of_pairs(lambda x1, x2: (x2, x1)),
    "both halves are negated: [-x2, -x1]": of_pairs(lambda x1, x2: (-x2, -x1)),
    "the halves keep their places: [-x1, x2]": of_pairs(lambda x1, x2: (-x1, x2)),
    "the halves come back exchanged: [x1, -x2]": of_pairs(lambda x1, x2: (x1, -x2)),
    "x comes back as it is": of_pairs(lambda x1, x2: (x1, x2)),
    "the gradient of the first half is zero": of_pairs(lambda x1, x2: (-x2, x1.detach())),
    "the gradient of the second half is zero": of_pairs(lambda x1, x2: (-x2.detach(), x1)),
    "the upstream gradient comes back as it is": (
        lambda **call: with_gradient_of(reference(**call), call["x"])
    ),
    "halves are paired where neighbours are asked for": change.given(interleaved=False),
    "neighbours are paired where halves are asked for": change.given(interleaved=True),
    **change.of_upstream(),
}
