"""On a GPU both layers are one CUDA graph, kept for each shape, into which inputs are copied."""

import functools

import torch
from torch.nn.functional import linear, silu


def _forward(x, w1, w2, w3, u1, u2, u3, mask):
    visual = linear(silu(linear(x, w1)) * linear(x, w3), w2)
    textual = linear(silu(linear(x, u1)) * linear(x, u3), u2)
    return torch.where(mask[:, None], visual, textual)


@functools.lru_cache(maxsize=8)
def _captured(tokens, width, inner, dtype, device):
    shapes = [(tokens, width), *2 * [(inner, width), (width, inner), (inner, width)]]
    held = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
    held.append(torch.zeros(tokens, dtype=torch.bool, device=device))
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        _forward(*held)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = _forward(*held)
    return graph, held, result


def _replayed(*arguments):
    x, w1 = arguments[:2]
    if not x.is_cuda or not x.numel() or torch.cuda.is_current_stream_capturing():
        return _forward(*arguments)
    graph, held, result = _captured(*x.shape, len(w1), x.dtype, x.device)
    for target, given in zip(held, arguments, strict=True):
        target.copy_(given)
    graph.replay()
    return result.clone()


class _MaskedFFN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        ctx.save_for_backward(*arguments)
        return _replayed(*arguments)

    @staticmethod
    def backward(ctx, grad):
        *given, mask = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in given]
            return *torch.autograd.grad(_forward(*leaves, mask), leaves, grad), None


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    return _MaskedFFN.apply(x, w1, w2, w3, u1, u2, u3, mask)
