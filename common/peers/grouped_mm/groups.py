"""torch's grouped product over tokens sorted by the mask.

The groups' ends stay on the GPU, so the host does not wait. For bfloat16 on sm_90 and later torch
runs one kernel; for other dtypes and devices it loops over the groups, and then the host waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ALIGNMENT = 16
"""The bytes of each row of the factors must be a multiple of this."""

# older versions of torch have the private function only
_grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm


def stacked(visual: torch.Tensor, textual: torch.Tensor) -> torch.Tensor:
    """Stack the weights, `[2, out, in]`; call this in `prepare`, since users hold them stacked.

    Raises:
        NotImplementedError: A row is not a multiple of 16 bytes.
    """
    weights = torch.stack((visual, textual))
    for width in weights.shape[1:]:
        if width * weights.itemsize % ALIGNMENT:
            raise NotImplementedError(f"rows of {width}, no multiple of {ALIGNMENT} bytes")
    return weights


@dataclass(frozen=True)
class Groups:
    """Tokens in two groups, those in the mask first."""

    order: torch.Tensor
    """The index in x of each sorted token."""
    ends: torch.Tensor
    """The end of each group, int32 `[2]`."""

    @classmethod
    def of(cls, mask: torch.Tensor) -> Groups:
        """Sort the tokens of a mask, bool `[tokens]`."""
        order = mask.argsort(descending=True, stable=True)
        sizes = torch.stack((mask, ~mask)).sum(dim=1)
        return cls(order, sizes.cumsum(0, dtype=torch.int32))

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of x in sorted order."""
        return x.index_select(0, self.order)

    def scattered(self, rows: torch.Tensor) -> torch.Tensor:
        """Return sorted rows in the order of x."""
        return torch.empty_like(rows).index_copy_(0, self.order, rows)

    def linear(self, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Multiply the rows of each group with the group's weight."""
        return _grouped_mm(rows, weights.mT, offs=self.ends)
