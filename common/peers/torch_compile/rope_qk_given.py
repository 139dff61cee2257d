"""Hugging Face's formula compiled, cosines and sines given."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from common.peers.angles import of_whole_heads
from common.peers.torch_compile.each_op import Compiled


def _turned(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return q and k turned, as `apply_rotary_pos_emb` of transformers turns them."""
    turned = []
    for t in (q, k):
        first, second = t.chunk(2, dim=-1)
        partner = torch.cat((-second, first), dim=-1)
        turned.append(t * cos.unsqueeze(2) + partner * sin.unsqueeze(2))
    return tuple(turned)


_compiled = Compiled(_turned)


def prepare(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd"
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Do the untimed part, as a compiled Llama: compile, and make cosines and sines, once."""
    inputs = q, k, *of_whole_heads(q, freqs, tensor_format)
    return functools.partial(_compiled.of(*inputs), *inputs)
