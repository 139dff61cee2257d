"""quack's gated, grouped products; sort and scatter timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from common.peers.quack.routing import Routing, gemm, gemm_dgated, gemm_gated, readable


def prepare(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    u1: torch.Tensor,
    u2: torch.Tensor,
    u3: torch.Tensor,
    mask: torch.Tensor,
) -> Callable[[], torch.Tensor]:
    """Do the untimed part: stack the weights, and copy an x that quack cannot read.

    quack's users hold the weights stacked, with the rows of gate and up in turn.
    """
    sets = ((w1, w3), (u1, u3))
    up = torch.stack([torch.stack(pair, dim=1).flatten(0, 1) for pair in sets])
    rows, up, down = readable(x, up, torch.stack((w2, u2)))
    return lambda: _Gated.apply(rows, up, down, mask)  # type: ignore[no-untyped-call]


class _Gated(torch.autograd.Function):
    """The layer with its gradient, made of grouped products too, since quack has none."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        routing = Routing.of(mask)
        before, inner = gemm_gated(x, up.mT, cu_seqlens_m=routing.starts, A_idx=routing.index)
        ctx.save_for_backward(x, up, down, before)
        ctx.routing = routing
        return routing.scattered(gemm(inner, down.mT, cu_seqlens_m=routing.starts))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, up, down, before), routing = ctx.saved_tensors, ctx.routing
        gradient = gradient.contiguous()
        gathered = {"cu_seqlens_m": routing.starts, "A_idx": routing.index}
        d_before, inner = gemm_dgated(gradient, down, before, **gathered)
        dx = routing.scattered(gemm(d_before, up, cu_seqlens_m=routing.starts))
        # the gradients of weights gather columns
        by_column = {"cu_seqlens_k": routing.starts, "A_idx": routing.index}
        d_up = gemm(x.T, d_before, **by_column)
        return dx, d_up.mT, gemm(gradient.T, inner, **by_column), None
