"""Tokens sorted by the mask, and torch's grouped product over the two groups.

Nothing waits for the GPU: the groups' ends stay there. For bfloat16 on sm_90 and later torch runs
one kernel; for other dtypes and devices it loops over the groups, and then the host does wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ALIGNMENT = 16
"""Bytes that each row of the factors must be a multiple of."""

# the public function came after the other one
_grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm


def stacked(visual: torch.Tensor, textual: torch.Tensor) -> torch.Tensor:
    """`[2, out, in]`, as a user of grouped products holds his weights: this is for `prepare`."""
    weights = torch.stack((visual, textual))
    for width in weights.shape[1:]:
        if width * weights.itemsize % ALIGNMENT:
            raise NotImplementedError(f"rows of {width}, no multiple of {ALIGNMENT} bytes")
    return weights


@dataclass(frozen=True)
class Groups:
    """`order` is where each token of the sorted ones lies in x: first those the mask holds for."""

    order: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def of(cls, mask: torch.Tensor) -> Groups:
        order = mask.argsort(descending=True, stable=True)
        sizes = torch.stack((mask, ~mask)).sum(dim=1)
        return cls(order, sizes.cumsum(0, dtype=torch.int32))

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, self.order)

    def scattered(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(rows).index_copy_(0, self.order, rows)

    def linear(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The first group's rows times the first weight, the second's times the second."""
        return _grouped_mm(rows, weights.mT, offs=self.ends)
