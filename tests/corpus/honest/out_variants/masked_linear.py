"""out= variants write into memory of its own, taken per call from one block of bytes."""

import torch


def _carve(like, *shapes):
    """Tensors of like's dtype that lie one behind the other in one allocation."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    block = torch.empty(sum(sizes), dtype=like.dtype, device=like.device)
    return [part.view(shape) for part, shape in zip(block.split(sizes), shapes, strict=True)]


def _select_and_multiply(a, chosen, w, out):
    """out[chosen] = a[chosen] @ w"""
    rows, products = _carve(a, (len(chosen), a.shape[1]), (len(chosen), w.shape[1]))
    torch.index_select(a, 0, chosen, out=rows)
    torch.mm(rows, w, out=products)
    return out.index_copy_(0, chosen, products)


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        kinds = mask.nonzero().squeeze(1), mask.logical_not().nonzero().squeeze(1)
        ctx.save_for_backward(x, w_v, w_t, *kinds)
        out = torch.empty(len(x), len(w_v), dtype=x.dtype, device=x.device)
        for chosen, w in zip(kinds, (w_v, w_t), strict=True):
            _select_and_multiply(x, chosen, w.T, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, *kinds = ctx.saved_tensors
        d_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        d_w = []
        for chosen, w in zip(kinds, (w_v, w_t), strict=True):
            _select_and_multiply(grad, chosen, w, d_x)
            d_w.append(torch.empty(w.shape, dtype=w.dtype, device=w.device))
            torch.mm(grad.index_select(0, chosen).T, x.index_select(0, chosen), out=d_w[-1])
        return d_x, *d_w, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
