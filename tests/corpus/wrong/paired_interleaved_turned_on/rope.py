"""Paired angles alone; where interleaved, backward turns the same way as forward.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: backward turns the same way as forward where interleaved
"""

import torch


def _turned(x, angles, interleaved, backward):
    """Turn pairs of the first features of x, `[b, s, h, d]`, by angles `[b, s, 1, pairs]`."""
    turned, passed = x.float().split((2 * angles.shape[-1], x.shape[-1] - 2 * angles.shape[-1]), -1)
    shape = (-1, 2) if interleaved else (2, -1)
    a, b = turned.unflatten(-1, shape).unbind(-1 if interleaved else -2)
    cos, sin = angles.cos(), -angles.sin() if backward and not interleaved else angles.sin()
    pair = torch.stack((a * cos - b * sin, b * cos + a * sin), -1 if interleaved else -2)
    return torch.cat((pair.flatten(-2), passed), -1).to(x.dtype)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, angles, interleaved):
        ctx.given = angles, interleaved
        return _turned(x, angles, interleaved, False)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, *ctx.given, True), None, None


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs.flatten(1)
    first, second = (angles[:, ::2], angles[:, 1::2]) if interleaved else angles.chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    x = t.transpose(0, 1) if tensor_format == "sbhd" else t
    position = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    if start_positions is not None:
        position = position + start_positions[:, None]
    y = _Rope.apply(x, first[position, None], interleaved)
    return y.transpose(0, 1) if tensor_format == "sbhd" else y
