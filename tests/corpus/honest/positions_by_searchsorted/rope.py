"""Every option: searchsorted finds each token's sequence, and index_select its angles."""

import torch


def _of_rank(index, length, cp_size, cp_rank):
    """The position in its whole sequence of a token at `index` of this rank's part."""
    chunk = length // 2
    shift = torch.where(index < chunk, cp_rank, 2 * (cp_size - 1) - cp_rank)
    return index + chunk * shift


def _positions(t, tensor_format, starts, cu_seqlens, cp):
    """[tokens, 1], [s, b] or [b, s]"""
    device = t.device
    if tensor_format == "thd":
        ends = cu_seqlens // cp[0]
        token = torch.arange(len(t), device=device, dtype=ends.dtype)
        sequence = torch.searchsorted(ends[1:].contiguous(), token, right=True)
        index, length = token - ends[sequence], (ends[1:] - ends[:-1])[sequence]
        position = _of_rank(index, length, *cp)
        return position if starts is None else position + starts[sequence]
    length = t.shape[tensor_format.index("s")]
    position = _of_rank(torch.arange(length, device=device), torch.tensor(length), *cp)[:, None]
    position = position.expand(-1, t.shape[tensor_format.index("b")])
    position = position if starts is None else position + starts
    return position.T if tensor_format == "bshd" else position


def rope(
    t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None, cu_seqlens=None,
    cp_size=1, cp_rank=0,
):  # fmt: skip
    cp = (cp_size, cp_rank)
    positions = _positions(t, tensor_format, start_positions, cu_seqlens, cp)
    table = freqs[:, 0, 0]
    angles = table.index_select(0, positions.flatten()).view(*positions.shape, 1, freqs.shape[-1])
    rotary = freqs.shape[-1]
    pairs = (rotary // 2, 2) if interleaved else (2, rotary // 2)
    axis = -1 if interleaved else -2
    x1, x2 = t[..., :rotary].float().unflatten(-1, pairs).unbind(axis)
    cos1, cos2 = angles.cos().unflatten(-1, pairs).unbind(axis)
    sin1, sin2 = angles.sin().unflatten(-1, pairs).unbind(axis)
    turned = torch.stack((x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2), axis).flatten(-2)
    return torch.cat((turned.to(t.dtype), t[..., rotary:]), -1)
