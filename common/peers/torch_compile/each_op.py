"""torch.compile on the reference: static shapes, one graph."""

import functools
import inspect
from typing import Any

import torch

from common import ops
from common.errors import UserError
from common.peers.torch_compile.compiled import fresh


def __getattr__(op: str) -> Any:
    try:
        reference = ops.load(op).reference
    except UserError:
        raise AttributeError(op) from None
    call, bind = fresh(reference), inspect.signature(reference).bind

    @functools.wraps(reference)
    def compiled(*inputs: Any, **options: Any) -> torch.Tensor:
        return call(**bind(*inputs, **options).arguments)

    return compiled
