"""The cases, inputs and masks that `masked_linear` and `masked_ffn` share."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from common.ops._pairs import pairwise
from common.ops._views import place, randn
from common.spec import (
    SLACK,
    Case,
    Direction,
    Factors,
    Layout,
    Row,
    Split,
    Table,
    Tier,
    Values,
)

Mask = Literal["span", "random", "all", "none"]
LONGEST_SPAN = 1024
"""The number of visual tokens of one image; each sequence of the seed's batches has one image."""
WIDEST_TWIN = 512
"""The largest width of a reduced case; the whole board takes one minute in the interpreter at 512,
and two minutes at 1024."""
DTYPES = ("float32", "bfloat16", "float16")
# In float32 at K = 1024 (H200), a kernel that adds the K terms of a product in order errs up to 4.3
# times as much as cuBLAS, which splits the sum. The ratio grows with the square root of K: 16 times
# at 14,336. A tf32 product errs a thousand times as much as cuBLAS.
MASKED_SLACK = {**SLACK, "float32": 16.0}
PLOTTED = (2048, 4096, 8192, 16384, 32768, 63488)
"""The plotted token counts, between the least and the most tokens that the seed measured."""
SPANS, PERCENTAGES = (4, 16, 64, 256, 1024), (0, 5, 25, 50, 75, 95, 100)
"""The plotted masks over 16,384 tokens: numbers of spans, and percentages of random tokens."""


@dataclass(frozen=True, kw_only=True)
class MaskedCase(Case):
    """One input of a masked op."""

    sizes = ("tokens", "widths")

    tokens: int
    widths: tuple[int, int]
    """Input and output width of `masked_linear`, model and intermediate width of `masked_ffn`."""
    mask: Mask = "span"
    """The visual tokens, where the mask is true: a span in each sequence, random, all or none."""
    percent: int = 50
    """The percentage of visual tokens in a random mask."""
    sequences: int = 1
    """The number of sequences, which are concatenated."""
    scale: float = 1.0
    """The standard deviation of x."""
    weights: tuple[Layout, ...] = ()
    """The layout of each weight, in the order of the arguments; empty: all contiguous."""
    mask_layout: Layout = "contiguous"

    @property
    def name(self) -> str:
        """`16384x1024x1024-bfloat16-span`: sizes, dtype, mask, then non-default options."""
        parts = ["x".join(map(str, (self.tokens, *self.widths))), self.dtype]
        parts += [f"{self.sequences}spans" if self.sequences > 1 else self.mask]
        parts += [f"{self.percent}%"] * (self.percent != 50)
        parts += [f"scale={self.scale:g}"] * (self.scale != 1)
        parts += self.unusual
        # the first two letters of each layout: weights=co+tr
        short = "+".join(layout[:2] for layout in self.weights)
        parts += [f"weights={short}"] * bool(self.weights)
        parts += [f"mask={self.mask_layout}"] * (self.mask_layout != "contiguous")
        return "-".join(parts + ["twin"] * self.twin)

    def track_of(self, direction: Direction) -> str:
        """Return `forward` or, for backward, `training`."""
        return "forward" if direction == "forward" else "training"

    def varied(self, dice: random.Random) -> MaskedCase:
        """Return the case with the opposite mask if all tokens are of one kind.

        A mask that must not select infinite weights stays as it is.
        """
        opposite: dict[Mask, Mask] = {"all": "none", "none": "all"}
        mask = self.mask if self.values == "infinite" else opposite.get(self.mask, self.mask)
        return dataclasses.replace(self, mask=mask)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of x."""
        return (self.tokens, self.widths[0])

    @property
    def weight_sets(self) -> int:
        """The number of weight sets, 0 to 2, that some token selects.

        A random mask of several tokens counts as selecting both sets.
        """
        uniform = self.mask in ("all", "none") or self.percent in (0, 100)
        return min(self.tokens, 1 if uniform else 2)


TRACKS = ("forward", "training")
TOKENS = Split(0, {"x": 0, "mask": 0})


def draw_x(case: MaskedCase, generator: torch.Generator) -> torch.Tensor:
    """Draw x, `[tokens, features]`."""
    return randn(case.shape, case.dtype, case.layout, generator, case.scale, case.values)


def draw_weights(
    case: MaskedCase,
    names: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    generator: torch.Generator,
) -> dict[str, torch.Tensor]:
    """Draw the visual and then the textual weights, scaled for outputs near 1.

    Args:
        case: The case. If its values are infinite, every seventh input feature is infinite in the
            weights of a set that no token selects.
        names: The arguments' names, the visual weights first.
        shapes: The shape of each weight of one set, `[out_features, in_features]`.
        generator: The source of the values, and their device.
    """  # fmt: skip
    drawn = {}
    for index, name in enumerate(names):
        shape = shapes[index % len(shapes)]
        values = randn(shape, case.dtype, "contiguous", generator, shape[1] ** -0.5)
        selecting_mask = "all" if index < len(shapes) else "none"
        if case.values == "infinite" and case.mask != selecting_mask:
            values[:, ::7] = torch.inf
        drawn[name] = place(values, case.weights[index] if case.weights else "contiguous")
    return drawn


def draw_mask(case: MaskedCase, generator: torch.Generator) -> torch.Tensor:
    """Draw the mask, bool `[tokens]`."""
    return place(_mask(case, generator), case.mask_layout)


def _mask(case: MaskedCase, generator: torch.Generator) -> torch.Tensor:
    device = generator.device
    if case.mask in ("all", "none"):
        return torch.full((case.tokens,), case.mask == "all", device=device)
    if case.mask == "random":
        return torch.rand(case.tokens, generator=generator, device=device) < case.percent / 100
    length = case.tokens // case.sequences
    span = min(LONGEST_SPAN, (length + 1) // 2)
    size = (case.sequences, 1)
    first = torch.randint(length - span + 1, size, generator=generator, device=device)
    position = torch.arange(length, device=device)
    mask = ((position >= first) & (position < first + span)).flatten()
    # tokens after the last whole sequence are textual
    return torch.nn.functional.pad(mask, (0, case.tokens - mask.numel()))


def twin(case: MaskedCase) -> MaskedCase:
    """Divide both widths by the same power of two, and cut the tokens to a few tiles.

    For example, 4096x4096x14336 becomes 40x128x448. Equal widths stay equal, others stay unequal.
    """
    divisor = 1
    while max(case.widths) // divisor > WIDEST_TWIN:
        divisor *= 2
    first, second = (width // divisor for width in case.widths)
    return dataclasses.replace(
        case, tokens=32 + case.tokens // 512, widths=(first, second), twin=True
    )


# --- cases ----------------------------------------------------------------------------------------


def cases(
    tier: Tier,
    model: tuple[int, int],
    wide: tuple[int, int],
    weights: int,
    values: tuple[Values, ...],
) -> Iterator[MaskedCase]:
    """Yield the cases of a tier.

    Args:
        tier: The tier. Smoke cases have their own small widths, for the interpreter.
        model: The op's widths in the seed's model.
        wide: The op's widths in a current model.
        weights: The number of weights.
        values: The special values of x for which the op's products stay in the dtype's range.
    """
    if tier == "smoke":
        yield from _smoke(tokens=4100 if weights == 2 else 2100)
        yield from _smoke_values(values)
        yield from _smoke_pairs(weights)
    elif tier == "matrix":
        yield from _matrix((model, wide, (1000, 1048)))
    elif tier == "board":
        yield from _board(model, wide)
    else:
        yield from _plot(model)


def _case(tokens: int, *widths: int, **fields: Any) -> MaskedCase:
    first, second = widths
    return MaskedCase(tokens=tokens, widths=(first, second), **fields)


def _smoke(tokens: int) -> Iterator[MaskedCase]:
    yield _case(70, 40, 24)
    for dtype in DTYPES:
        # sums long enough to expose a low-precision accumulator
        yield _case(34, 1024, 32, dtype=dtype)
    yield _case(300, 16, 16, dtype="float16")  # more tokens than any tile
    yield _case(256, 24, 16, mask="random", dtype="bfloat16")  # the last tile is full, too
    # stride 0: all tokens are equal, and all have the same mask value
    yield _case(20, 24, 40, layout="expanded", mask="random")
    yield _case(20, 24, 40, mask="all", mask_layout="expanded")
    # the guard bytes after the mask's one element are true
    yield _case(20, 24, 40, mask="none", mask_layout="expanded")
    yield _case(37, 72, 100, mask="random", dtype="bfloat16")
    for mask in ("all", "none"):
        yield _case(1, 24, 40, mask=mask)
    for width in (24, 40):  # square weights, which pass if a kernel exchanges the two widths
        yield _case(20, width, width, dtype="bfloat16")
    yield _case(0, 16, 24)
    yield _case(2, 7, 1)
    yield _case(9, 1, 5, mask="random")
    yield _case(130, 16, 16, sequences=3)
    yield _case(40, 200, 17, sequences=2)
    yield _case(20, 3000, 24, dtype="bfloat16")
    yield _case(20, 24, 3000, dtype="bfloat16")
    for dtype in DTYPES:
        yield _case(19, 24, 40, dtype=dtype)  # more output than input features
    for dtype in ("bfloat16", "float16"):
        yield _case(0, 7, 1, dtype=dtype)
        yield _case(1, 1, 7, dtype=dtype)
    # over 4,100 tokens, a weight gradient that is rounded after each block of 256 tokens errs 2.9
    # times as much as a gradient that is rounded once; fewer tokens would hide the difference
    yield _case(tokens, 32, 40, dtype="bfloat16", mask="random")
    # 70 rows lie 2^31/69 elements apart, which cuBLAS reads correctly; with 3 rows, 2^30 elements
    # apart, cuBLAS accesses memory out of bounds
    yield _case(70, 24, 40, dtype="bfloat16", layout="far")
    yield _case(70, 24, 40, dtype="bfloat16", upstream="far")


def _smoke_values(special: Iterable[Values]) -> Iterator[MaskedCase]:
    # beyond the range of float16
    yield _case(34, 64, 40, dtype="bfloat16", scale=1e5)
    for values in special:
        yield _case(20, 40, 24, values=values, mask="random", dtype="float16")
        yield _case(20, 40, 24, upstream_values=values, mask="random", dtype="float16")
    yield _case(20, 40, 24, values="huge", mask="random")
    yield _case(20, 40, 24, upstream_values="huge", mask="random", dtype="bfloat16")
    for mask in ("all", "none"):
        yield _case(20, 40, 24, values="infinite", mask=mask)


FACTORS: Factors = {
    "layout": ("contiguous", "strided", "offset", "transposed", "sparse"),
    "mask": ("span", "random", "all", "none"),
    "dtype": DTYPES,
    "upstream": ("contiguous", "strided", "expanded", "reversed"),
    "mask_layout": ("contiguous", "sparse"),
    "widths": ((24, 40), (33, 17)),
    "tokens": (38, 70),
}
"""The options of both ops, except the layouts of the weights."""
WEIGHTS: tuple[Layout, ...] = ("contiguous", "transposed", "sparse", "strided")


def factors(weights: int) -> Factors:
    """Return the factors of an op with this number of weights; `w0` is weight 0's layout."""
    return {**FACTORS, **{f"w{index}": WEIGHTS for index in range(weights)}}


def subsets(weights: int) -> tuple[Factors, ...]:
    """Return the values to which many solutions are limited: half types, contiguous inputs."""
    layouts = ("layout", "mask_layout", *(f"w{index}" for index in range(weights)))
    return ({"dtype": ("bfloat16", "float16")}, dict.fromkeys(layouts, ("contiguous",)))


def table(weights: int) -> Table[MaskedCase]:
    """Return the options of an op with this number of weights."""

    def case_of(row: Row) -> MaskedCase:
        layouts = tuple(row[f"w{index}"] for index in range(weights))
        return MaskedCase(**{name: row[name] for name in FACTORS}, weights=layouts)

    return Table(factors(weights), case_of, subsets=subsets(weights))


def layouts(case: MaskedCase, weights: Sequence[str]) -> dict[str, Layout]:
    """Return the layouts of the mask and of each weight."""
    return {"mask": case.mask_layout, **dict(zip(weights, case.weights, strict=False))}


def _smoke_pairs(weights: int) -> Iterator[MaskedCase]:
    options = table(weights)
    yield from map(options.case_of, pairwise(options.factors, subsets=options.subsets))


def _matrix(widths: Iterable[tuple[int, int]]) -> Iterator[MaskedCase]:
    masks: tuple[dict[str, Any], ...] = (
        {}, {"sequences": 3}, {"mask": "random"}, {"mask": "all"}, {"mask": "none"},
    )  # fmt: skip
    for dtype in DTYPES:
        for pair in widths:
            for tokens in (1, 63, 1000, 4096):
                for mask in masks[2:] if tokens == 1 else masks:
                    yield MaskedCase(tokens=tokens, widths=pair, dtype=dtype, **mask)


def large(hidden: int) -> MaskedCase:
    """Return the case whose tokens have more than 2^31 features."""
    return _case(2**20 + 128, 2048, hidden, dtype="bfloat16", mask="random")


def _board(model: tuple[int, int], wide: tuple[int, int]) -> Iterator[MaskedCase]:
    def case(tokens: int, widths: tuple[int, int] = model, **fields: Any) -> MaskedCase:
        return MaskedCase(tokens=tokens, widths=widths, **{"dtype": "bfloat16"} | fields)

    for tokens in (2048, 16384, 63488):
        yield case(tokens)
    yield case(16384, sequences=8)
    yield case(16384, mask="random")
    yield case(16384, dtype="float16")
    yield case(4096, wide)


def _plot(model: tuple[int, int]) -> Iterator[MaskedCase]:
    for tokens in PLOTTED:
        yield _case(tokens, *model, dtype="bfloat16")
    for sequences in SPANS:
        yield _case(16384, *model, dtype="bfloat16", sequences=sequences)
    for percent in PERCENTAGES:
        yield _case(16384, *model, dtype="bfloat16", mask="random", percent=percent)
