"""The ops of masked layers: `masked` derives an op from the names and shapes of its weights."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from common import spec
from common.ops import _names
from common.ops._draw import place, randn
from common.ops._pairs import Factors, PairTable
from common.spec import DTYPES, ITEMSIZE, Axis, Case, Direction, Layout, Op, Tier, described

Mask = Literal["span", "third", "random", "all", "none"]
Widths = tuple[int, int]
# In float32 at K = 1024 (H200), a kernel that adds the K terms of a product in order errs up to 4.3
# times as much as cuBLAS, which splits the sum. The ratio grows with the square root of K: 16 times
# at 14,336. A tf32 product errs a thousand times as much as cuBLAS.
MASKED_SLACK = {**spec.SLACK, "float32": 16.0}
WIDE: Widths = (4096, 14336)
"""The widths of Llama 3 8B."""


@dataclass(frozen=True, kw_only=True)
class MaskedCase(Case):
    """One input of a masked op; `masked` derives a class with the op's names."""

    names: ClassVar[tuple[str, ...]]
    """The names of the two widths."""

    tokens: int
    widths: Widths
    """Input and output width of `masked_linear`, model and intermediate width of `masked_ffn`."""
    mask: Mask = described("option", "span", "", "the mask")
    """The visual tokens, where the mask is true: a span in each sequence, a third of all, which is
    one span, random, all or none."""
    percent: int = described("option", 50, "{0.percent}%", "the percentage of a random mask")
    """The percentage of visual tokens in a random mask."""
    sequences: int = described("option", 1, "", "the number of sequences")
    """The number of sequences, which are concatenated."""
    scale: float = described("option", 1.0, "scale={0.scale:g}")
    """The standard deviation of x."""
    mask_layout: Layout = described("layout", "contiguous")

    @property
    def head(self) -> list[str]:
        """`16384x1024x1024-bfloat16-span`: the sizes, the dtype and the mask."""
        sizes = "x".join(map(str, (self.tokens, *self.widths)))
        return [sizes, self.dtype, f"{self.sequences}spans" if self.sequences > 1 else self.mask]

    @classmethod
    def of_head(cls, words: list[str]) -> Self:
        """Read the sizes, the dtype and the mask: `random`, or `8spans` for eight sequences."""
        tokens, *widths = _names.sizes(words, ", ".join(("tokens", *cls.names)))
        dtype = _names.one_of(words, DTYPES, "a dtype")
        fields: dict[str, Any] = {"tokens": tokens, "widths": tuple(widths), "dtype": dtype}
        if words and (spans := re.fullmatch(r"(\d+)spans", words[0])):
            del words[0]
            return cls(**fields, sequences=int(spans[1]))
        mask: Any = _names.one_of(words, get_args(Mask), "a mask or 8spans")
        return cls(**fields, mask=mask)

    def settled(self) -> Self:
        """Refuse a mask that is not drawn.

        Raises:
            ValueError: The number of sequences or the percentage is impossible.
        """
        if not 1 <= self.sequences <= self.tokens:
            raise ValueError(f"{self.tokens} tokens have no {self.sequences} sequences")
        if self.percent != 50 and (self.mask != "random" or not 0 <= self.percent <= 100):
            raise ValueError(f"{self.percent}% is no part of a {self.mask} mask")
        if self.values == "infinite" and self.mask not in ("all", "none"):
            raise ValueError("infinite weights need a mask that does not select them: all or none")
        return self

    @property
    def measures(self) -> dict[str, spec.Fact]:
        """The number of tokens and both widths."""
        return {"tokens": self.tokens, **dict(zip(self.names, self.widths, strict=True))}

    def changed(self, dice: random.Random) -> Self:
        """Return the case with the opposite mask if all tokens are of one kind.

        A mask that must not select infinite weights stays as it is.
        """
        opposite: dict[Mask, Mask] = {"all": "none", "none": "all"}
        mask = self.mask if self.values == "infinite" else opposite.get(self.mask, self.mask)
        return dataclasses.replace(self, mask=mask)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of x."""
        return (self.tokens, self.widths[0])


def masked(
    *,
    widths: Mapping[str, str],
    weights: Mapping[str, tuple[str, str]],
    output: str,
    model: Widths,
    activations: Callable[[int, int], int],
    values: tuple[spec.Values, ...],
    large: int,
    **fields: Any,
) -> Op[MaskedCase]:
    """Return the op.

    Args:
        widths: The names of both widths, the first of x, with the name of one feature of each.
        weights: The widths of each weight, `[out_features, in_features]`, the visual tokens' first.
        output: The width of the output.
        model: The op's widths in the seed's model.
        activations: The elements for each token that eager allocates, by the widths.
        values: The special values of x for which the op's products stay in the dtype's range.
        large: The second width of the case whose tokens have more than 2^31 features.
        fields: The op's name, order, interface and reference; see `Op`.
    """
    one_set = [*weights.values()][: len(weights) // 2]

    layouts = dict.fromkeys((f"{weight}_layout" for weight in weights), WEIGHT_LAYOUTS)
    make = spec.with_layouts(MaskedCase, layouts, names=(*widths,))

    def size(case: MaskedCase, width: str) -> int:
        return case.widths[width != next(iter(widths))]

    def draw(case: MaskedCase, generator: torch.Generator) -> dict[str, Any]:
        """Scale the weights for outputs near 1."""
        drawn = {
            "x": randn(case.shape, case.dtype, case.layout, generator, case.scale, case.values)
        }
        for index, (weight, (rows, columns)) in enumerate(weights.items()):
            shape = size(case, rows), size(case, columns)
            plain = randn(shape, case.dtype, "contiguous", generator, shape[1] ** -0.5)
            # every seventh input feature is infinite in the weights that no token selects
            if case.values == "infinite" and case.mask != ("all", "none")[index >= len(one_set)]:
                plain[:, ::7] = torch.inf
            drawn[weight] = place(plain, case.layouts[weight])
        return drawn | {"mask": draw_mask(case, generator)}

    def work(case: MaskedCase, direction: Direction) -> spec.Work:
        """Return the minimum work: the op's products, and the gradients of all their factors.

        The bytes assume that intermediate values stay on the chip and that backward gets the needed
        intermediate values for free. Forward reads x, the mask and the weights that some token
        selects, and writes the output. Backward reads the same tensors and the output's gradient,
        and writes the gradients of x and of all weights.
        """
        tokens, shapes = case.tokens, [(size(case, m), size(case, k)) for m, k in one_set]
        of_set = sum(math.prod(shape) for shape in shapes)
        x, out = tokens * case.widths[0], tokens * size(case, output)
        uniform = case.mask in ("all", "none") or case.percent in (0, 100)
        moved = x + out + min(tokens, 1 if uniform else 2) * of_set
        products: list[spec.Product] = [(tokens, k, m) for m, k in shapes]
        if direction == "backward":
            moved += x + 2 * of_set
            products = [(tokens, m, k) for m, k in shapes] + [(m, tokens, k) for m, k in shapes]
        flops = sum(2 * math.prod(product) for product in products)
        return spec.Work(moved * ITEMSIZE[case.dtype] + tokens, flops, tuple(products))

    def workspace(case: MaskedCase) -> int:
        """Return the bytes that eager allocates: its activations and the gradients of weights."""
        gradients = sum(size(case, m) * size(case, k) for m, k in weights.values())
        return (case.tokens * activations(*case.widths) + gradients) * ITEMSIZE[case.dtype]

    def axes(case: MaskedCase, arguments: Mapping[str, Any]) -> spec.Axes:
        mask = arguments["mask"]
        parts = {"the masked tokens": mask, "the unmasked tokens": ~mask}
        named = {part: where.nonzero().flatten().tolist() for part, where in parts.items()}
        tokens, features = Axis("token", named), {key: Axis(one) for key, one in widths.items()}
        return {
            "output": (tokens, features[output]),
            "x": (tokens, features[next(iter(widths))]),
            **{weight: (features[m], features[k]) for weight, (m, k) in weights.items()},
        }

    contiguous = dict.fromkeys(("layout", "mask_layout", *layouts), ("contiguous",))
    subsets = {"dtype": DTYPES[1:]}, contiguous
    table = PairTable[MaskedCase]({**FACTORS, **layouts}, make, subsets)

    def cases(tier: Tier) -> Iterator[MaskedCase]:
        def case(tokens: int, first: int, second: int, **fields: Any) -> MaskedCase:
            return make(tokens=tokens, widths=(first, second), **fields)

        if tier == "smoke":
            yield from _smoke(case, values, most=4100 if len(weights) == 2 else 2100)
            yield from table.cases()
        elif tier == "matrix":
            shapes = itertools.product(DTYPES, (model, WIDE, (1000, 1048)), (1, 63, 1000, 4096))
            for dtype, pair, tokens in shapes:
                for sequences in (1, 3) if tokens > 1 else ():
                    yield case(tokens, *pair, dtype=dtype, sequences=sequences)
                for mask in ("random", "all", "none"):
                    yield case(tokens, *pair, dtype=dtype, mask=mask)
        elif tier == "board":
            for tokens in (2048, 16384, 63488):
                yield case(tokens, *model, dtype="bfloat16")
            yield case(16384, *model, dtype="float16", mask="random")
            yield case(16384, 2048, 5632, dtype="bfloat16", sequences=8)  # TinyLlama
            yield case(8192, 3584, 18944, dtype="bfloat16", mask="third")  # Qwen 2.5 7B
            yield case(4096, *WIDE, dtype="bfloat16")
        else:
            # between the least and the most tokens that the seed measured
            for tokens in (2048, 4096, 8192, 16384, 32768, 63488):
                yield case(tokens, *model, dtype="bfloat16")
            for sequences in (4, 16, 64, 256, 1024):
                yield case(16384, *model, dtype="bfloat16", sequences=sequences)
            for percent in (0, 5, 25, 50, 75, 95, 100):
                yield case(16384, *model, dtype="bfloat16", mask="random", percent=percent)

    return Op(
        **fields,
        differentiable=("x", *weights),
        cases=cases,
        twin=twin,
        draw=draw,
        outputs=lambda case: {"output": (case.tokens, size(case, output))},
        work=work,
        workspace=workspace,
        split={"output": 0, "x": 0, "mask": 0},
        axes=axes,
        slack=MASKED_SLACK,
        permutable=("mask",),
        table=table,
        large=make(tokens=2**20 + 128, widths=(2048, large), dtype="bfloat16", mask="random"),
    )


def draw_mask(case: MaskedCase, generator: torch.Generator) -> Tensor:
    """Draw the mask, bool `[tokens]`; tokens after the last whole sequence are textual."""
    device = generator.device
    mask = torch.full((case.tokens,), case.mask == "all", device=device)
    if case.mask == "random":
        mask = torch.rand(case.tokens, generator=generator, device=device) < case.percent / 100
    elif case.mask in ("span", "third"):
        length = case.tokens // case.sequences
        # the seed's sequences have one image each, of 1,024 visual tokens; a prompt may have more
        span = length // 3 if case.mask == "third" else min(1024, (length + 1) // 2)
        size = (case.sequences, 1)
        first = torch.randint(length - span + 1, size, generator=generator, device=device)
        position = torch.arange(length, device=device)
        spans = ((position >= first) & (position < first + span)).flatten()
        mask[: len(spans)] = spans
    return place(mask, case.mask_layout)


def twin(case: MaskedCase) -> MaskedCase:
    """Divide both widths by the same power of two, and cut the tokens to a few tiles.

    For example, 4096x4096x14336 becomes 40x128x448. Equal widths stay equal, others stay unequal.
    """
    divisor = 1
    while max(case.widths) // divisor > spec.WIDEST_TWIN:
        divisor *= 2
    widths = max(case.widths[0] // divisor, 1), max(case.widths[1] // divisor, 1)
    return dataclasses.replace(case, tokens=32 + case.tokens // 512, widths=widths, twin=True)


# --- cases ----------------------------------------------------------------------------------------

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
WEIGHT_LAYOUTS: tuple[Layout, ...] = ("contiguous", "transposed", "sparse", "strided")


def _smoke(
    case: Callable[..., MaskedCase], special: tuple[spec.Values, ...], most: int
) -> Iterator[MaskedCase]:
    yield case(70, 40, 24)
    for dtype in DTYPES:
        # sums long enough to expose a low-precision accumulator
        yield case(34, 1024, 32, dtype=dtype)
    yield case(300, 16, 16, dtype="float16")  # more tokens than any tile
    yield case(256, 24, 16, mask="random", dtype="bfloat16")  # the last tile is full, too
    # stride 0: all tokens are equal, and all have the same mask value
    yield case(20, 24, 40, layout="expanded", mask="random")
    yield case(20, 24, 40, mask="all", mask_layout="expanded")
    # the guard bytes after the mask's one element are true
    yield case(20, 24, 40, mask="none", mask_layout="expanded")
    yield case(37, 72, 100, mask="random", dtype="bfloat16")
    for mask in ("all", "none"):
        yield case(1, 24, 40, mask=mask)
    for width in (24, 40):  # square weights, which pass if a kernel exchanges the two widths
        yield case(20, width, width, dtype="bfloat16")
    yield case(0, 16, 24)
    yield case(2, 7, 1)
    yield case(9, 1, 5, mask="random")
    yield case(130, 16, 16, sequences=3)
    yield case(40, 200, 17, sequences=2)
    yield case(20, 3000, 24, dtype="bfloat16")
    yield case(20, 24, 3000, dtype="bfloat16")
    for dtype in DTYPES:
        yield case(19, 24, 40, dtype=dtype)  # more output than input features
    for dtype in ("bfloat16", "float16"):
        yield case(0, 7, 1, dtype=dtype)
        yield case(1, 1, 7, dtype=dtype)
    # over 4,100 tokens, a weight gradient that is rounded after each block of 256 tokens errs 2.9
    # times as much as a gradient that is rounded once; fewer tokens would hide the difference
    yield case(most, 32, 40, dtype="bfloat16", mask="random")
    # 70 rows lie 2^31/69 elements apart, which cuBLAS reads correctly; with 3 rows, 2^30 elements
    # apart, cuBLAS accesses memory out of bounds
    yield case(70, 24, 40, dtype="bfloat16", layout="far")
    yield case(70, 24, 40, dtype="bfloat16", upstream="far")
    # beyond the range of float16
    yield case(34, 64, 40, dtype="bfloat16", scale=1e5)
    for values in special:
        yield case(20, 40, 24, values=values, mask="random", dtype="float16")
        yield case(20, 40, 24, upstream_values=values, mask="random", dtype="float16")
    yield case(20, 40, 24, values="huge", mask="random")
    yield case(20, 40, 24, upstream_values="huge", mask="random", dtype="bfloat16")
    for mask in ("all", "none"):
        yield case(20, 40, 24, values="infinite", mask=mask)
