"""`skeleton`: say in a line what it computes.

    out = x * silu(y)

Source: the paper, the library or the model that it is from.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import silu

from common.ops._shaped import shaped


class Skeleton(Protocol):
    """The signature of every solution."""

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Say what a solution returns.

        Args:
            x: `[..., d]`; bfloat16, float16 or float32.
            y: Of x's shape and dtype.

        Returns:
            A tensor of x's shape and dtype.
        """


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Say how plain torch computes it; its roundings are the budget of solutions."""
    return x * silu(y)


OP = shaped(
    name="skeleton",
    interface=Skeleton,
    reference=reference,
    rows=("x", "y"),  # the arguments of the output's shape; vectors=("weight",) are of shape [d]
    flops=(5, 11),  # operations for each element of the output, forward and backward
)
