"""Eager and in place: x is multiplied by cos, and its swapped halves by sin are added."""

import torch


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        half = x.shape[-1] // 2
        ctx.save_for_backward(cos, sin)
        swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        own = x.clone()
        own *= cos
        own.addcmul_(swapped, sin)
        return own

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        half = grad.shape[-1] // 2
        swapped = torch.cat((grad[..., half:], -grad[..., :half]), dim=-1)
        return (grad * cos).addcmul_(swapped, sin), None, None


def rope(t, freqs, *, tensor_format="sbhd", start_positions=None):
    if tensor_format == "thd" or freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("packed sequences, or a part of the features")
    first, second = freqs[:, 0, 0].chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    s, b = (t.shape[tensor_format.index(each)] for each in "sb")
    place = torch.arange(s, device=t.device).expand(b, s)
    if start_positions is not None:
        place = place + start_positions[:, None]
    if tensor_format == "sbhd":
        place = place.T
    cos, sin = (part.to(t.dtype)[place].unsqueeze(2).repeat(1, 1, 1, 2)
                for part in (first.cos(), first.sin()))  # fmt: skip
    return _Slow.apply(t, cos, sin)
