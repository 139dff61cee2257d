"""Tokens sorted by the mask, and quack's products over the two groups, which gather by index.

Its defaults, not its search for the fastest tiles: that compiles for longer than an answer may
take.
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
    """`order` is where each token of the sorted ones lies: first those the mask holds for.
    `index` is the same and `starts` are the groups' bounds, in int32, as quack takes them."""

    order: torch.Tensor
    index: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def of(cls, mask: torch.Tensor) -> Routing:
        order = mask.argsort(descending=True, stable=True)
        sizes = torch.stack((mask, ~mask)).sum(dim=1)
        ends = sizes.cumsum(0, dtype=torch.int32)
        return cls(order, order.int(), torch.nn.functional.pad(ends, (1, 0)))

    def scattered(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(rows).index_copy_(0, self.order, rows)


def readable(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """As quack reads them: contiguous, at an aligned address, in half precision."""
    for tensor in tensors:
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
