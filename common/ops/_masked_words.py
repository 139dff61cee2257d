"""Names of a masked op's tokens and of its cases' properties, for messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.ops._masked import MaskedCase
from common.ops._views import layout_name
from common.spec import Axis, Fact


def tokens_axis(arguments: Mapping[str, Any]) -> Axis:
    """Return the token dimension, with the masked and the unmasked tokens as parts."""
    mask = arguments["mask"]
    masked, unmasked = mask.nonzero().flatten().tolist(), (~mask).nonzero().flatten().tolist()
    return Axis("token", {"the masked tokens": masked, "the unmasked tokens": unmasked})


def facts(case: MaskedCase, widths: Sequence[str], weights: Sequence[str]) -> dict[str, Fact]:
    """Return the case's properties.

    Args:
        case: The case.
        widths: The names of the two widths.
        weights: The names of the weights.
    """
    layouts = case.weights or ("contiguous",) * len(weights)
    return {
        "tokens": case.tokens,
        **dict(zip(widths, case.widths, strict=True)),
        "dtype": case.dtype,
        "the mask": case.mask,
        "the percentage of a random mask": case.percent,
        "the number of sequences": case.sequences,
        "x": layout_name(case.shape, case.layout),
        **dict(zip(weights, layouts, strict=True)),
        "the layout of the mask": case.mask_layout,
        "upstream": case.upstream,
        "values": case.values,
        "upstream's values": case.upstream_values,
        "scale": case.scale,
    }
