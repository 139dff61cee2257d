"""The cases, inputs and masks that `masked_linear` and `masked_ffn` share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from common.ops._views import Layout, randn
from common.spec import SLACK, Case, Direction, Tier

Mask = Literal["span", "random", "all", "none"]
LONGEST_SPAN = 1024
"""The visual tokens of one image, which each sequence of the seed's batches holds."""
WIDEST_TWIN = 512
"""At this width the whole board takes a minute in the interpreter; at 1024 it took two."""
DTYPES = ("float32", "bfloat16", "float16")
# A kernel that adds the K terms of a product in order errs by up to 4.3 times as much as cuBLAS,
# which splits the sum, at K = 1024 in float32 (H200), and the ratio grows as the root of K: 16
# times at 14,336. A tf32 product errs by a thousand times as much.
MASKED_SLACK = {**SLACK, "float32": 16.0}
PLOTTED = (2048, 4096, 8192, 16384, 32768, 63488)
"""Token counts between the least and the most that the seed measured."""


@dataclass(frozen=True, kw_only=True)
class MaskedCase(Case):
    """One input of a masked op."""

    sizes = ("tokens", "widths")

    tokens: int
    widths: tuple[int, int]
    """Input and output features of `masked_linear`, model and intermediate ones of `masked_ffn`."""
    mask: Mask = "span"
    """The tokens that the mask holds for: one span of each sequence, random ones, all or none."""
    sequences: int = 1
    """The number of sequences, which lie end to end."""
    scale: float = 1.0
    """The standard deviation of x."""
    layout: Layout = "contiguous"
    """How x lies in memory."""
    weights: Layout = "contiguous"
    """How each weight lies in memory."""

    @property
    def name(self) -> str:
        """`16384x1024x1024-bfloat16-span`: sizes, dtype, mask, then what is not the default."""
        parts = ["x".join(map(str, (self.tokens, *self.widths))), self.dtype]
        parts += [f"{self.sequences}spans" if self.sequences > 1 else self.mask]
        parts += [f"scale={self.scale:g}"] * (self.scale != 1)
        parts += [self.layout] * (self.layout != "contiguous")
        parts += [f"weights={self.weights}"] * (self.weights != "contiguous")
        return "-".join(parts + ["twin"] * self.twin)

    def track_of(self, direction: Direction) -> str:
        """Return `forward` or, for backward, `training`."""
        return "forward" if direction == "forward" else "training"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of x."""
        return (self.tokens, self.widths[0])

    @property
    def weight_sets(self) -> int:
        """The number of weight sets, of the two, that have a token.

        A random mask of several tokens counts as having both kinds.
        """
        return min(self.tokens, 1 if self.mask in ("all", "none") else 2)


TRACKS = ("forward", "training")


def draw_x(case: MaskedCase, generator: torch.Generator) -> torch.Tensor:
    """Draw x, `[tokens, features]`."""
    return randn(case.shape, case.dtype, case.layout, generator, case.scale)


def draw_weight(
    case: MaskedCase, out_features: int, in_features: int, generator: torch.Generator
) -> torch.Tensor:
    """Draw a weight, `[out_features, in_features]`, scaled to keep a layer's output near 1."""
    shape, scale = (out_features, in_features), in_features**-0.5
    return randn(shape, case.dtype, case.weights, generator, scale)


def draw_mask(case: MaskedCase, generator: torch.Generator) -> torch.Tensor:
    """Draw the mask, bool `[tokens]`."""
    device = generator.device
    if case.mask in ("all", "none"):
        return torch.full((case.tokens,), case.mask == "all", device=device)
    if case.mask == "random":
        return torch.rand(case.tokens, generator=generator, device=device) < 0.5
    length = case.tokens // case.sequences
    span = min(LONGEST_SPAN, (length + 1) // 2)
    size = (case.sequences, 1)
    first = torch.randint(length - span + 1, size, generator=generator, device=device)
    place = torch.arange(length, device=device)
    mask = ((place >= first) & (place < first + span)).flatten()
    # the tokens after the last whole sequence are text
    return torch.nn.functional.pad(mask, (0, case.tokens - mask.numel()))


def twin(case: MaskedCase) -> MaskedCase:
    """Cut wide widths, and the tokens to a few tiles; keep the mask and the dtype."""
    first, second = (min(width, WIDEST_TWIN) for width in case.widths)
    return dataclasses.replace(
        case, tokens=32 + case.tokens // 512, widths=(first, second), twin=True
    )


# --- cases ----------------------------------------------------------------------------------------


def cases(tier: Tier, model: tuple[int, int], wide: tuple[int, int]) -> Iterator[MaskedCase]:
    """Yield the cases of a tier.

    Args:
        tier: Smoke cases have small widths of their own, for the interpreter.
        model: The op's widths in the seed's model.
        wide: The op's widths in a current model.
    """
    if tier == "smoke":
        yield from _smoke()
    elif tier == "matrix":
        yield from _matrix((model, wide, (1000, 1048)))
    elif tier == "board":
        yield from _board(model, wide)
    else:
        for tokens in PLOTTED:
            yield MaskedCase(tokens=tokens, widths=model, dtype="bfloat16")


def _smoke() -> Iterator[MaskedCase]:
    def case(tokens: int, *widths: int, **fields: Any) -> MaskedCase:
        first, second = widths
        return MaskedCase(tokens=tokens, widths=(first, second), **fields)

    for dtype in DTYPES:
        yield case(70, 40, 24, dtype=dtype)
        yield case(37, 72, 100, dtype=dtype, mask="random")
        yield case(34, 1024, 32, dtype=dtype)  # sums long enough to show their dtype
        yield case(130, 16, 16, dtype=dtype, sequences=3)
        yield case(300, 16, 16, dtype=dtype)  # more tokens than any tile
    for mask in ("all", "none"):
        yield case(70, 48, 33, mask=mask)
        yield case(70, 48, 33, mask=mask, dtype="bfloat16")
        yield case(1, 24, 40, mask=mask)
    yield case(0, 16, 24)
    yield case(2, 7, 1, mask="span")
    yield case(9, 1, 5, mask="random")
    yield case(40, 200, 17, sequences=2)
    yield case(20, 4096, 24, dtype="bfloat16")
    yield case(20, 24, 4096, dtype="bfloat16")
    # beyond the range of float16
    yield case(34, 64, 40, dtype="bfloat16", scale=1e5)
    for layout in ("strided", "offset", "transposed", "sparse"):
        yield case(38, 24, 40, layout=layout)
        yield case(38, 24, 40, layout=layout, weights=layout, dtype="bfloat16")
    yield case(70, 64, 128, weights="transposed", dtype="float16")


def _matrix(widths: Iterable[tuple[int, int]]) -> Iterator[MaskedCase]:
    masks: tuple[dict[str, Any], ...] = (
        {}, {"sequences": 3}, {"mask": "random"}, {"mask": "all"}, {"mask": "none"},
    )  # fmt: skip
    for dtype in DTYPES:
        for pair in widths:
            for tokens in (1, 63, 1000, 4096):
                for mask in masks[2:] if tokens == 1 else masks:
                    yield MaskedCase(tokens=tokens, widths=pair, dtype=dtype, **mask)


def _board(model: tuple[int, int], wide: tuple[int, int]) -> Iterator[MaskedCase]:
    def case(tokens: int, widths: tuple[int, int] = model, **fields: Any) -> MaskedCase:
        return MaskedCase(tokens=tokens, widths=widths, **{"dtype": "bfloat16"} | fields)

    for tokens in (2048, 16384, 63488):
        yield case(tokens)
    yield case(16384, sequences=8)
    yield case(16384, mask="random")
    yield case(16384, dtype="float16")
    yield case(4096, wide)
