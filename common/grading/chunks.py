"""Large tensors in pieces: results and truths that lie in host memory where a GPU's is scarce."""

from __future__ import annotations

from collections.abc import Iterator

import torch

CHUNK = 1 << 22
"""The elements of a chunk: 32 MB in float64."""


def chunks(
    device: torch.device | str, *tensors: torch.Tensor
) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yield tensors of one shape chunk by chunk, flat and on the device.

    Yields:
        The index of the chunk's first element among all, and the chunk of each tensor, `[n]`.
    """
    flat = [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, len(flat[0]), CHUNK):
        yield start, [each[start : start + CHUNK].to(device) for each in flat]


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a GPU's tensor in host memory that is copied back fast, else the tensor.

    It is contiguous.
    """
    if not tensor.is_cuda:
        return tensor
    try:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    except RuntimeError:  # the host locks no more memory; a plain copy is slower
        return tensor.contiguous().cpu()
    return host.copy_(tensor)
