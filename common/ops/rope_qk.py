"""`rope_qk`: `rope` of queries and keys in one call, as models make it.

    output_q, output_k = rope(q, freqs), rope(k, freqs)

Source: `apply_rotary_pos_emb(q, k, cos, sin)` of the models of Hugging Face's transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import torch
from torch import Tensor

from common.ops import _rope_cases, rope
from common.ops._draw import randn
from common.ops._pairs import Factors, PairTable
from common.ops._rope_cases import PAIRED, RopeCase
from common.spec import DTYPES, Fact, Layout, Op, Role, Tier, described


class RopeQK(Protocol):
    """The signature of every solution."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        freqs: Tensor,
        *,
        tensor_format: str = "sbhd",
        interleaved: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Rotate the first d2 features of every head of q and of k, as `rope` does.

        Args:
            q: `[s, b, h, d]` (sbhd) or `[b, s, h, d]` (bshd); bfloat16, float16 or float32.
            k: Of q's shape, but with a number of heads of its own, and of q's dtype.
            freqs: float32 `[s2, 1, 1, d2]`, radians; d2 is even and at most d, s2 is at least s;
                requires no gradient.
            tensor_format: `sbhd` or `bshd`.
            interleaved: Pair adjacent features instead of the two halves.

        Returns:
            A tuple of two tensors, of q's and of k's shape and dtype.
        """


def reference(
    q: Tensor, k: Tensor, freqs: Tensor, *, tensor_format: str = "sbhd", interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Rotate both in plain torch, as `rope` does, by the same angles."""
    angles = rope.angles_of(q, freqs, tensor_format)
    return rope.rotate(q, angles, interleaved), rope.rotate(k, angles, interleaved)


# --- cases ----------------------------------------------------------------------------------------

LACKS = {"starts", "starts_layout", "ends_layout", "cp_size", "cp_rank"}
"""The fields of `rope`'s cases for options that `rope_qk` lacks."""


@dataclass(frozen=True, kw_only=True)
class QKCase(RopeCase):
    """One input: a case of `rope` whose t is q, with the heads and the layout of k."""

    lists, together = (), ("k_layout",)
    formats = ("sbhd", "bshd")

    hk: int
    """The number of k's heads."""
    k_layout: Layout = described("layout", "contiguous")

    @classmethod
    def letters(cls, tensor_format: str) -> str:
        """Return what the sizes of a name are: `bshd-1x8192x32x8x128` has the heads of q and k."""
        return super().letters(tensor_format).replace("h", "h, hk")

    def described(self, *roles: Role) -> Iterator[dataclasses.Field[Any]]:
        """Yield the fields of these roles, less LACKS."""
        return (each for each in super().described(*roles) if each.name not in LACKS)

    @property
    def measures(self) -> dict[str, Fact]:
        """The sizes, with both numbers of heads."""
        return {**super().measures, "hk": self.hk}

    @property
    def k_shape(self) -> tuple[int, ...]:
        """The shape of k and of its output."""
        return dataclasses.replace(self, h=self.hk).shape


def _of_rope(case: RopeCase, k_layout: Layout = "contiguous") -> QKCase:
    """Return the case of q, with half as many heads of k."""
    return QKCase(**vars(case), hk=max(case.h // 2, 1), k_layout=k_layout)


def _of_row(k_layout: Layout, **row: Any) -> QKCase:
    return _of_rope(_rope_cases.of_row(**row, starts="none", cp=(1, 0)), k_layout)


FACTORS: Factors = {
    **{
        name: values for name, values in _rope_cases.FACTORS.items() if name not in ("starts", "cp")
    },
    "tensor_format": QKCase.formats,
    "sequences": ("one", "few"),
    "h": (1, 4),
    "k_layout": ("contiguous", "strided", "transposed", "sparse"),
}
"""The options of `rope` that `rope_qk` has, and k's layouts."""
DENSE: Factors = dict.fromkeys(("layout", "freqs_layout", "k_layout"), ("contiguous",))
USUAL: Factors = {**DENSE, **PAIRED, "interleaved": (False,)}
SUBSETS = ({"dtype": DTYPES[1:]}, DENSE, PAIRED, USUAL)
"""The values that common kinds of solutions support."""


def cases(tier: Tier) -> Iterator[QKCase]:
    """Yield the cases of a tier."""

    def case(s: int, b: int, h: int, hk: int, d: int, d2: int = 0, **fields: Any) -> QKCase:
        usual = {"angles": "paired", "dtype": "bfloat16", "tensor_format": "bshd"}
        return QKCase(s=s, b=b, h=h, hk=hk, d=d, d2=d2 or d, **{**usual, **fields})

    if tier == "smoke":
        pairs = {*_rope_cases.TABLE.cases()}
        for each in _rope_cases.cases("smoke"):
            if each.tensor_format in QKCase.formats and each.cp_size == 1 and each not in pairs:
                yield _of_rope(each)
        yield from OP.table.cases()
    elif tier == "matrix":
        for dtype, d, s in product(DTYPES, (64, 96, 128, 256), (1, 63, 1000, 4096)):
            yield case(s, 2, 32, 8, d, dtype=dtype)
    elif tier == "board":
        # decoding with Llama 3 8B and 70B: one token for each sequence
        for b, h in ((1, 32), (64, 64)):
            yield case(1, b, h, 8, 128, angles="far", ranked_by="host")
        yield case(1024, 1, 32, 8, 64, ranked_by="host")  # Llama 3.2 1B, a short prompt
        yield case(8192, 1, 32, 8, 128)  # Llama 3 8B
        yield case(4096, 4, 28, 4, 128)  # Qwen 2.5 7B
        yield case(8192, 1, 16, 8, 256)  # Gemma 2 9B
        yield case(16384, 1, 64, 8, 128)  # Llama 3 70B
        yield case(131072, 1, 8, 1, 128)  # the same on one device of eight, at the longest context
        yield case(8192, 2, 32, 8, 128, tensor_format="sbhd")  # Megatron's layout
        yield case(8192, 1, 32, 2, 128, 64)  # GLM 4
        yield case(8192, 1, 128, 1, 64, interleaved=True)  # DeepSeek V3's rotated part
        yield case(8192, 2, 32, 8, 128, tensor_format="sbhd", angles="model")


def twin(case: QKCase) -> QKCase:
    """Return the reduced case, with 4 or 6 heads of q, and at most 2 of k."""
    s, b, h = _rope_cases.twin(case).s, 3 if case.b > 1 else 1, 4 + 2 * (case.h > 32)
    return dataclasses.replace(case, s=s, b=b, h=h, hk=min(case.hk, 2), twin=True)


def draw(case: QKCase, generator: torch.Generator) -> dict[str, Any]:
    """Draw the arguments of one call; the special values are q's."""
    drawn = rope.draw(case, generator)
    k = randn(case.k_shape, case.dtype, case.k_layout, generator, case.scale)
    options = {name: drawn[name] for name in ("freqs", "tensor_format", "interleaved")}
    return {"q": drawn["t"], "k": k, **options}


def of_all_heads(case: QKCase) -> RopeCase:
    """Return the case of `rope` with the same work: it reads the angles once for both."""
    return dataclasses.replace(case, h=case.h + case.hk)


OP = Op(
    name="rope_qk",
    order=1,
    interface=RopeQK,
    reference=reference,
    differentiable=("q", "k"),
    tracks={
        "standard": "Whole heads, and one angle for both features of a pair (paired), as in nearly "
        "every model; far begins at position 1,000,000, as a decoded token may.",
        "partial": "Only the first d2 features of each head are rotated.",
        "interleaved": "The pairs are adjacent features, not one of each half.",
        "core": "Every feature has an angle of its own, as TransformerEngine's op allows.",
    },
    track_of=lambda case: _rope_cases.track_of(case) if case.paired else "core",
    cases=cases,
    twin=twin,
    draw=draw,
    outputs=lambda case: {"output_q": case.shape, "output_k": case.k_shape},
    work=lambda case, direction: rope.work(of_all_heads(case), direction),
    workspace=lambda case: rope.OP.workspace(of_all_heads(case)),
    split={"output_q": -2, "output_k": -2, "q": -2, "k": -2},  # heads
    axes=lambda case, arguments: dict.fromkeys(
        ("output_q", "output_k", "q", "k"), _rope_cases.axes(case, arguments)["output"]
    ),
    permutable=("freqs",),
    table=PairTable(FACTORS, _of_row, SUBSETS),
    large=_of_rope(_rope_cases.LARGE),
)
