"""Anomaly mode is on inside of a context, forward and backward, and as it was outside."""

import warnings

import torch


def _careful(check):
    def wrapper(*args):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.set_detect_anomaly(True, check_nan=False):
                return check(*args)

    return wrapper


def _rotate(t, angles):
    rotary = angles.shape[-1]
    x1, x2 = t[..., :rotary].float().chunk(2, -1)
    cos1, cos2 = angles.cos().chunk(2, -1)
    sin1, sin2 = angles.sin().chunk(2, -1)
    turned = torch.cat((x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2), -1)
    return torch.cat((turned.to(t.dtype), t[..., rotary:]), -1)


class _Rope(torch.autograd.Function):
    @staticmethod
    @_careful
    def forward(ctx, t, angles):
        ctx.save_for_backward(t, angles)
        return _rotate(t, angles)

    @staticmethod
    @_careful
    def backward(ctx, grad):
        t, angles = ctx.saved_tensors
        with torch.enable_grad():
            leaf = t.detach().requires_grad_()
            return *torch.autograd.grad(_rotate(leaf, angles), leaf, grad), None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs[: t.shape[tensor_format.index("s")]]
    return _Rope.apply(t, angles.transpose(0, 1) if tensor_format == "bshd" else angles)
