"""The house's masked layers beside plain torch, in the interpreter or on a GPU."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from common.ops import masked_ffn, masked_linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPS = masked_linear, masked_ffn
BOUND = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The largest error that is rounding, as a share of a tensor's largest element."""
FORMS = [
    ("small", "bfloat16", ("0.02 of all", "nine spans")),  # test_solutions.py has the others
    ("pointers", "float32", ("0.5 of all", "one span", "whole tiles", "0 of them")),
    ("descriptors", "float16", ()),
    ("packed", "float16", ("0.5 of all", "one span")),
]
"""A form of the kernels, a dtype, and the names of masks: all of them where none is named."""
MANY = {"packed": 300}
"""Tokens of a form; 304 of the others."""


def layers() -> tuple[Any, Any]:
    """Return the two layers; the house's folder is on `sys.path`."""
    import fast

    return fast.masked_linear, fast.masked_ffn


@contextlib.contextmanager
def form(name: str) -> Iterator[None]:
    """Have launches take a form: "packed" has descriptors and sums by kind, as of many tokens."""
    from fast import forms, gradients, launch, tiles

    from common.sandbox.interpreter.bounds import Watch

    described = name in ("packed", "descriptors")
    gpu = forms.gpu()._replace(hopper=described)
    changes = [
        (forms, "FEW", 1 << 60 if name == "small" else 0),
        (forms, "gpu", lambda: gpu),
        (launch, "replays", lambda: False),
    ]
    if name == "packed":
        changes.append((gradients, "ROWS_BY_KIND", 0))
    if DEVICE == "cpu" and described:
        # one descriptor describes two weights, and ends in another tensor than it begins in
        changes.append((Watch, "check", lambda *_: None))
        # the interpreter has no launch that overlaps another
        changes += [(module, "overlapping", lambda *_: {}) for module in (forms, tiles)]
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(mock.patch.object(*change))
        yield


def masks(tokens: int) -> dict[str, torch.Tensor]:
    """Return masks by name: fractions, spans, and those that leave a kind without a token."""
    drawn = torch.rand(tokens, generator=torch.Generator().manual_seed(1))
    place = torch.arange(tokens)
    return {
        **{f"{share:g} of all": drawn < share for share in (0, 0.02, 0.5, 1)},
        "one span": (place >= 70) & (place < 201),
        "whole tiles": place < 128,
        "nine spans": place % 33 < 11,
    }


def weights(width: int, inner: int, dtype: torch.dtype) -> list[list[torch.Tensor]]:
    """Draw the weights of the linear layer, [inner, width], and of the gated one."""
    up, down = (inner, width), (width, inner)
    return [
        [(torch.randn(shape, device=DEVICE) * shape[1] ** -0.5).to(dtype) for shape in shapes]
        for shapes in ((up, up), (up, down, up) * 2)
    ]


def errors(x: torch.Tensor, inner: int, mask: torch.Tensor) -> dict[str, float]:
    """Return the error of each layer's output and gradients, as shares of the largest element."""
    found = {}
    for op, layer, drawn in zip(OPS, layers(), weights(x.shape[1], inner, x.dtype), strict=True):
        results = results_of(layer, [x, *drawn], mask, x.dtype)
        wide = [each.double() for each in (x, *drawn)]
        truths = results_of(op.reference, wide, mask, x.dtype)
        names = ("output", *op.OP.differentiable)
        for name, result, truth in zip(names, results, truths, strict=True):
            found[f"{op.OP.name} {name}"] = _error(result, truth)
    return found


def results_of(layer, tensors, mask, dtype) -> tuple[torch.Tensor, ...]:
    """Return the output and the gradients; the upstream gradient is rounded to the dtype."""
    leaves = [each.detach().requires_grad_() for each in tensors]
    output = layer(*leaves, mask.to(DEVICE))
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return output, *torch.autograd.grad(output, leaves, upstream.to(output))


def _error(result: torch.Tensor, truth: torch.Tensor) -> float:
    if not truth.numel():
        return 0.0
    largest = truth.abs().max().item() or 1.0
    return ((result.double() - truth).abs().max() / largest).nan_to_num(nan=torch.inf).item()


def require_small_errors(name: str, dtype: str, some: tuple[str, ...]) -> None:
    """Assert that output and gradients are right under every mask, or under those named."""
    whole = {f"{count} of them": masks(count)["1 of all"] for count in (0, 1)}
    chosen = masks(MANY.get(name, 304)) | whole
    for of in some or chosen:
        # a descriptor describes 70 columns of 72, but not a copy of the 70
        x = torch.randn(len(chosen[of]), 72, device=DEVICE).to(getattr(torch, dtype))
        x = x[:, :70] if of == "0.5 of all" else x
        x = x.T.contiguous().T if of == "one span" else x
        with form(name):
            found = errors(x, 136, chosen[of])
        assert max(found.values()) <= BOUND[dtype], (of, found)
