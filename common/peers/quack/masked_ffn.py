"""quack's gated, grouped products, tuned where docs/peers.md says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from common.peers.quack.routing import Routing, gemm, gemm_dgated, gemm_gated, readable


def prepare(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor, mask: Tensor
) -> Callable[[], Tensor]:
    """Do the untimed part: stack the weights, and copy an x that quack cannot read.

    quack's users hold the weights stacked, with the rows of gate and up in turn.
    """
    sets = ((w1, w3), (u1, u3))
    up = torch.stack([torch.stack(pair, dim=1).flatten(0, 1) for pair in sets])
    rows, up, down = readable(x, up, torch.stack((w2, u2)))
    routing = Routing.of(mask)
    return lambda: _Gated.apply(rows, up, down, routing)  # type: ignore[no-untyped-call]


class _Gated(torch.autograd.Function):
    """The layer with its gradient, made of grouped products too, since quack has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor, routing: Routing) -> Tensor:
        before, inner = gemm_gated(x, up.mT, cu_seqlens_m=routing.starts, A_idx=routing.index)
        ctx.save_for_backward(x, up, down, before)
        ctx.routing = routing
        return routing.scattered(gemm(inner, down.mT, cu_seqlens_m=routing.starts))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, up, down, before), routing = ctx.saved_tensors, ctx.routing
        gradient = gradient.contiguous()
        gathered = {"cu_seqlens_m": routing.starts, "A_idx": routing.index}
        d_before, inner = gemm_dgated(gradient, down, before, **gathered)
        dx = routing.scattered(gemm(d_before, up, cu_seqlens_m=routing.starts))
        # the gradients of weights gather columns
        by_column = {"cu_seqlens_k": routing.starts, "A_idx": routing.index}
        d_up = gemm(x.T, d_before, **by_column)
        return dx, d_up.mT, gemm(gradient.T, inner, **by_column), None
