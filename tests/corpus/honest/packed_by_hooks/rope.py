"""Hooks of its own pack what autograd saves into bytes of the host, and unpack it."""

import torch


def _pack(tensor):
    flat = tensor.detach().flatten().cpu()
    return flat.view(torch.uint8).numpy().tobytes(), tensor.shape, tensor.dtype, tensor.device


def _unpack(packed):
    kept, shape, dtype, device = packed
    if not kept:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(bytearray(kept), dtype=dtype).view(shape).to(device)


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs[: t.shape[tensor_format.index("s")]]
    angles = angles.transpose(0, 1) if tensor_format == "bshd" else angles
    rotary = freqs.shape[-1]
    with torch.autograd.graph.saved_tensors_hooks(_pack, _unpack):
        x = t[..., :rotary].float()
        swapped = torch.cat([-x[..., rotary // 2 :], x[..., : rotary // 2]], -1)
        turned = x * angles.cos() + swapped * angles.sin()
    return torch.cat((turned.to(t.dtype), t[..., rotary:]), -1)
