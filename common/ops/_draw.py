"""The inputs of a call, in every layout in which callers pass tensors; a case's properties."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from common.spec import C, Fact, Layout, Op, Values, upstream_of

HUGE = {"float32": 1e6, "bfloat16": 1e6, "float16": 1e4}
"""The value of the huge element, by dtype; in float16 its square is infinite."""


def randn(
    shape: Sequence[int],
    dtype: str,
    layout: Layout,
    generator: torch.Generator,
    scale: float = 1.0,
    values: Values = "normal",
) -> Tensor:
    """Draw normally distributed values, some of them special, in a layout; see `place`.

    They are on the generator's device, and `scale` is their standard deviation. The op's `draw`
    inserts infinite ones.
    """
    drawn = torch.empty(tuple(shape), device=generator.device)
    drawn.normal_(generator=generator).mul_(scale)
    if values == "subnormal":
        drawn *= torch.finfo(getattr(torch, dtype)).smallest_normal / 4
    elif values == "zeros":
        drawn[::2] = 0
    elif values == "apart":
        half = len(drawn) // 2
        powers = 100.0 ** torch.arange(-half, len(drawn) - half, device=generator.device)
        drawn *= powers.view(-1, *[1] * (drawn.dim() - 1))
    elif values == "huge":
        drawn[tuple(size // 2 for size in shape)] = HUGE[dtype]
    return place(drawn.to(getattr(torch, dtype)), layout)


def place(values: Tensor, layout: Layout) -> Tensor:
    """Copy the values into new memory, as a view of this layout; the other memory is zero.

    * contiguous: as torch allocates it
    * strided: a slice of longer rows, as of a packed projection
    * offset: contiguous, three elements past an aligned address
    * transposed: with the first two dimensions swapped
    * reversed: with all dimensions in the opposite order
    * sparse: every other element of the last dimension
    * expanded: the first dimension larger than 1 has stride 0 and repeats its first slice
    * far: the last slice of the first dimension begins past 2^31 elements, though the stride is
      below 2^31; the memory between slices is never touched
    """
    if layout == "contiguous" or not values.numel():
        return values
    if layout == "expanded":
        repeated = next((dim for dim, size in enumerate(values.shape) if size > 1), 0)
        return values.narrow(repeated, 0, 1).clone().expand(values.shape)
    return _empty(values, layout).copy_(values)


def layout_name(shape: Sequence[int], layout: Layout) -> Layout:
    """Return the layout, or `contiguous` where a view of this shape is contiguous anyway.

    For example, `[5, 1, 3]` with its first two dimensions swapped is contiguous.
    """
    view = place(torch.empty(tuple(shape), device="meta"), layout)
    return layout if view.storage_offset() or not view.is_contiguous() else "contiguous"


def _empty(like: Tensor, layout: Layout) -> Tensor:
    """Return a view of the layout with the shape and dtype of `like`: zeros; far: uninitialized."""
    shape = tuple(like.shape)
    *rows, width = shape
    if layout == "strided":
        return like.new_zeros(*rows, width + 5)[..., 2 : 2 + width]
    if layout == "offset":
        return like.new_zeros(like.numel() + 3)[3:].view(shape)
    if layout == "transposed":
        first, second, *rest = shape
        return like.new_zeros(second, first, *rest).transpose(0, 1)
    if layout == "reversed":
        return like.new_zeros(shape[::-1]).permute(*reversed(range(len(shape))))
    if layout == "sparse":
        return like.new_zeros(*rows, 2 * width)[..., ::2]
    assert layout == "far", layout
    count, (_, *inner) = shape[0], torch.empty(shape, device="meta").stride()
    step = 2**31 // (count - 1) // 16 * 16 + 16  # below 2^31 for 3 or more slices
    # empty, not zeros: a CPU commits no pages until they are written
    memory = like.new_empty((count - 1) * step + like[0].numel())
    return memory.as_strided(shape, (step, *inner))


# --- what follows from an op and a case -----------------------------------------------------------


def draw(op: Op[C], case: C, seed: int, device: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Draw the arguments of one call and random upstream gradients, without the reference.

    Each gradient has its output's shape and dtype, and the case's layout and special values for
    upstream gradients; see `spec.upstream_of`.
    """
    generator = torch.Generator(device).manual_seed(seed)
    arguments = op.draw(case, generator)
    values = case.upstream_values
    return arguments, {
        upstream_of(name): randn(shape, case.dtype, case.upstream, generator, values=values)
        for name, shape in op.outputs(case).items()
    }


def given(op: Op[C], arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of a call in order, and the options whose value is not the default."""
    known, inputs, options = inspect.signature(op.interface.__call__).parameters, {}, {}
    for name, value in arguments.items():
        default = known[name].default
        if default is inspect.Parameter.empty:
            inputs[name] = value
        elif isinstance(value, Tensor) or value != default:
            options[name] = value
    return inputs, options


def facts_of(op: Op[C], case: C) -> dict[str, Fact]:
    """Return the sizes, options, layouts and values of a case by their names in messages.

    A size is an `int`; `upstream` is the layout of the upstream gradient.
    """
    options = {"dtype": case.dtype, **case.facts("option")}
    layouts: dict[str, Fact] = {op.differentiable[0]: layout_name(case.shape, case.layout)}
    for argument, layout in case.layouts.items():
        described = {argument, f"the {argument}"} & options.keys()
        layouts[f"the layout of {described.pop()}" if described else argument] = layout
    return {
        **case.measures,
        **options,
        **layouts,
        "upstream": layout_name(next(iter(op.outputs(case).values())), case.upstream),
        **case.facts("data"),
        "values": case.values,
        "upstream's values": case.upstream_values,
    }
