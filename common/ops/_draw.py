"""What follows from an op and a case: the inputs of one call, and the case's properties."""

from __future__ import annotations

from typing import Any

import torch

from common.ops._views import layout_name, randn
from common.spec import C, Fact, Op


def draw(op: Op[C], case: C, seed: int, device: str) -> tuple[dict[str, Any], torch.Tensor]:
    """Draw the arguments of one call and a random upstream gradient, without the reference.

    The gradient has the output's shape and dtype, and the case's layout and special values for the
    upstream gradient.
    """
    generator = torch.Generator(device).manual_seed(seed)
    arguments = op.draw(case, generator)
    values = case.upstream_values
    shape = op.output(case)
    return arguments, randn(shape, case.dtype, case.upstream, generator, values=values)


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
        "upstream": layout_name(op.output(case), case.upstream),
        **case.facts("data"),
        "values": case.values,
        "upstream's values": case.upstream_values,
    }
