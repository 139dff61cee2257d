"""torch.func.vmap maps the rotation of one head over heads and over the batch."""

import torch


def _head(t, angles):
    """t and the result [s, d], angles [s, d2]"""
    rotary = angles.shape[-1]
    x1, x2 = t[:, :rotary].float().chunk(2, -1)
    cos1, cos2 = angles.cos().chunk(2, -1)
    sin1, sin2 = angles.sin().chunk(2, -1)
    turned = torch.cat((x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2), -1)
    return torch.cat((turned.to(t.dtype), t[:, rotary:]), -1)


_heads = torch.func.vmap(_head, in_dims=(1, None), out_dims=1)
_batches = {axis: torch.func.vmap(_heads, in_dims=(axis, None), out_dims=axis) for axis in (0, 1)}


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    if not t.numel():
        return t.clone()
    angles = freqs[: t.shape[tensor_format.index("s")], 0, 0]
    return _batches[tensor_format.index("b")](t, angles)
