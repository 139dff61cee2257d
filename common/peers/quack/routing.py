"""quack's products over tokens sorted by the mask.

They run with quack's defaults, since its search for the fastest tiles compiles for longer than an
answer may take.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from quack import gemm_interface

MULTIPLE = 8

gemm = functools.partial(gemm_interface.gemm, tuned=False)
gemm_gated = functools.partial(gemm_interface.gemm_gated, activation="swiglu", tuned=False)
gemm_dgated = functools.partial(gemm_interface.gemm_dgated, activation="swiglu", tuned=False)


@dataclass(frozen=True)
class Routing:
    """Tokens in two groups, those in the mask first."""

    order: torch.Tensor
    """The index in x of each sorted token."""
    index: torch.Tensor
    """The same in int32, which quack needs."""
    starts: torch.Tensor
    """The bounds of the groups, int32 `[3]`."""

    @classmethod
    def of(cls, mask: torch.Tensor) -> Routing:
        """Sort the tokens of a mask, bool `[tokens]`."""
        order = mask.argsort(descending=True, stable=True)
        sizes = torch.stack((mask, ~mask)).sum(dim=1)
        ends = sizes.cumsum(0, dtype=torch.int32)
        return cls(order, order.int(), torch.nn.functional.pad(ends, (1, 0)))

    def scattered(self, rows: torch.Tensor) -> torch.Tensor:
        """Return sorted rows in the order of x."""
        return torch.empty_like(rows).index_copy_(0, self.order, rows)


def readable(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors that quack can read: contiguous and aligned, copied where necessary.

    Raises:
        NotImplementedError: There is no GPU, a tensor is in float32, or a width is not a multiple
            of 8.
    """
    for tensor in tensors:
        if not tensor.is_cuda:
            raise NotImplementedError("needs a GPU")
        if tensor.dtype is torch.float32:
            raise NotImplementedError("float32")
        if any(size % MULTIPLE for size in tensor.shape[1:]):
            raise NotImplementedError(f"widths that are no multiple of {MULTIPLE}")
    return [
        tensor
        if tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
        else tensor.clone(memory_format=torch.contiguous_format)
        for tensor in tensors
    ]
