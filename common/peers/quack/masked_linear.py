"""quack's grouped product, tuned where docs/peers.md says so; scattering timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from common.peers.quack.routing import Routing, gemm, readable


def prepare(x: Tensor, w_v: Tensor, w_t: Tensor, mask: Tensor) -> Callable[[], Tensor]:
    """Do the untimed part: stack the weights, as users hold them, and copy an unreadable x."""
    rows, weights = readable(x, torch.stack((w_v, w_t)))
    routing = Routing.of(mask)
    return lambda: _Grouped.apply(rows, weights, routing)  # type: ignore[no-untyped-call]


class _Grouped(torch.autograd.Function):
    """The product with its gradient, made of grouped products too, since quack has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, routing: Routing) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.routing = routing
        rows = gemm(x, weights.mT, cu_seqlens_m=routing.starts, A_idx=routing.index)
        return routing.scattered(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weights), routing = ctx.saved_tensors, ctx.routing
        rows = gradient.index_select(0, routing.order)
        dx = routing.scattered(gemm(rows, weights, cu_seqlens_m=routing.starts))
        # gathers x's columns; [2, in, out]
        dw = gemm(x.T, rows, cu_seqlens_k=routing.starts, A_idx=routing.index)
        return dx, dw.mT, None
