"""lmdeploy's Triton rotary, for inference: forward alone."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

import torch

from common.peers.angles import of_whole_heads

# the file needs torch and Triton alone, and importing the package needs its engine
if _found := importlib.util.find_spec("lmdeploy"):
    _folders = _found.submodule_search_locations or ()
    sys.path.extend(f"{each}/pytorch/kernels/cuda" for each in _folders)

from apply_rotary_pos_emb import apply_rotary_pos_emb


def prepare(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd"
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Do the untimed part: make a row of cosines and sines for each token, once for all layers.

    The engine holds the tokens of all sequences in a row, `[tokens, h, d]`; other layouts are
    copied.

    Raises:
        NotImplementedError: The tensor is empty, or `of_whole_heads` raises it.
    """
    if not q.numel():
        raise NotImplementedError("an empty tensor")
    tables = of_whole_heads(q, freqs, tensor_format)
    cos, sin = (table.expand(*q.shape[:2], -1).flatten(0, 1) for table in tables)
    rows = [t.detach().flatten(0, 1) for t in (q, k)]

    def call() -> tuple[torch.Tensor, ...]:
        turned = apply_rotary_pos_emb(*rows, cos, sin)
        return turned[0].view(q.shape), turned[1].view(k.shape)

    return call
