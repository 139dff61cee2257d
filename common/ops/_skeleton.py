"""`skeleton`: state in one line what the op computes.

    out = x * silu(y)

Source: the paper, the library or the model that defines the op.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import silu

from common.ops._shaped import shaped


class Skeleton(Protocol):
    """The signature of every solution."""

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """State what a solution returns.

        Args:
            x: `[..., d]`; bfloat16, float16 or float32.
            y: A tensor of x's shape and dtype.

        Returns:
            A tensor of x's shape and dtype.
        """


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute the op in plain torch; a solution's error may be `slack` times this code's error."""
    return x * silu(y)


OP = shaped(
    name="skeleton",
    interface=Skeleton,
    reference=reference,
    rows=("x", "y"),  # arguments of the output's shape; vectors=("weight",) have shape [d]
    flops=(5, 11),  # operations for each element of the output, forward and backward
)
