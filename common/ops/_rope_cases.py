"""The cases of `rope`: the fields that its inputs are drawn from, and the cases of each tier."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from common.ops._pairs import Row, pairwise
from common.ops._rope_options import CORE, EXCLUDED, EXTENDED, MANY
from common.spec import Case, Direction, Layout, Tier


@dataclass(frozen=True, kw_only=True)
class RopeCase(Case):
    """One input of `rope`; a thd case has `lengths` in the place of `s` and `b`."""

    sizes = ("s", "b", "h", "d", "d2")
    lists = ("lengths",)
    joined = ("cp_size", "cp_rank")

    track: str
    s: int = 0
    """The tokens of each sequence that this rank holds."""
    b: int = 0
    h: int
    d: int
    d2: int
    tensor_format: Literal["sbhd", "bshd", "thd"] = "sbhd"
    interleaved: bool = False
    starts: bool = False
    """Each sequence starts at a position of its own."""
    lengths: tuple[int, ...] = ()
    """The tokens of each whole sequence of a thd case."""
    cp_size: int = 1
    cp_rank: int = 0
    angles: Literal["random", "model", "far", "paired"] = "random"
    """The values of freqs:

    * random: normal values
    * model: position times a frequency that falls with the feature, with other frequencies in the
      second half
    * far: as model, from position 1,000,000 on
    * paired: as model, with one angle for both features of a pair, as some libraries need it
    """
    spare: bool = True
    """freqs has more positions than are used, so that reading past the last one goes unnoticed."""
    scale: float = 1.0
    """The standard deviation of t."""
    freqs_layout: Layout = "contiguous"
    starts_layout: Layout = "contiguous"
    ends_layout: Layout = "contiguous"
    """The place of cu_seqlens in memory."""

    @property
    def name(self) -> str:
        """`sbhd-8192x2x32x128-bfloat16`: format, t's shape, dtype, then what is not the default."""
        rows = (len(self.lengths), sum(self.lengths)) if self.lengths else (self.s, self.b)
        if self.tensor_format == "bshd":
            rows = (self.b, self.s)
        parts = [self.tensor_format, "x".join(map(str, (*rows, self.h, self.d))), self.dtype]
        parts += [f"d2={self.d2}"] * (self.d2 != self.d)
        parts += ["interleaved"] * self.interleaved + ["starts"] * self.starts
        parts += [f"cp={self.cp_rank}of{self.cp_size}"] * (self.cp_size > 1)
        parts += self.unusual
        for tensor in ("freqs", "starts", "ends"):
            layout = getattr(self, f"{tensor}_layout")
            parts += [f"{tensor}={layout}"] * (layout != "contiguous")
        parts += [self.angles] * (self.angles in ("far", "paired")) + ["apart"] * self.apart
        parts += ["tight"] * (not self.spare) + ["twin"] * self.twin
        return "-".join(parts)

    @property
    def kind(self) -> str:
        """The dtype, the layout of the pairs and the format."""
        return f"{self.dtype} {self.interleaved} {self.tensor_format}"

    def varied(self, dice: random.Random) -> RopeCase:
        """Return the case with its sequences in another order."""
        return dataclasses.replace(
            self, lengths=tuple(dice.sample(self.lengths, len(self.lengths)))
        )

    def track_of(self, direction: Direction) -> str:
        """Return the case's own track, in either direction."""
        return self.track

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of t, and of the output."""
        if self.tensor_format == "thd":
            return (sum(self.lengths) // self.cp_size, self.h, self.d)
        rows = (self.s, self.b) if self.tensor_format == "sbhd" else (self.b, self.s)
        return (*rows, self.h, self.d)

    @property
    def positions(self) -> int:
        """The number of positions of the longest sequence that this rank holds."""
        return max(self.lengths) // self.cp_size if self.lengths else self.s


def cases(tier: Tier) -> Iterator[RopeCase]:
    """Yield the cases of a tier."""
    yield from {"smoke": _smoke, "matrix": _matrix, "board": _board, "plot": _plot}[tier]()


def _core(s: int, b: int, h: int, d: int, d2: int | None = None, **fields: Any) -> RopeCase:
    return RopeCase(track="core", s=s, b=b, h=h, d=d, d2=d if d2 is None else d2, **fields)


def _extended(s: int, b: int, h: int, d: int, d2: int | None = None, **fields: Any) -> RopeCase:
    return dataclasses.replace(_core(s, b, h, d, d2, **fields), track="extended")


def _smoke() -> Iterator[RopeCase]:
    yield from _smoke_sizes()
    yield from _smoke_alone()
    yield from _smoke_values()
    for table in (CORE, EXTENDED):
        yield from map(case_of, pairwise(table, EXCLUDED))


def _smoke_sizes() -> Iterator[RopeCase]:
    yield _core(7, 2, 3, 16, angles="model")
    yield _core(20, 1, 2, 64, 32, dtype="bfloat16")
    yield _core(5, 2, 3, 80, 24, tensor_format="bshd", dtype="float16")
    yield _core(4, 3, 2, 96, 40)
    yield _core(3, 2, 10, 2)
    # whole blocks of tokens, the last one too; bfloat16 has no 257, in which positions are counted
    yield _core(512, 1, 1, 4, dtype="bfloat16")
    # more than one tile along each dimension in turn
    yield _core(130, 1, 1, 4)
    yield _core(2, 1, 130, 4)
    yield _core(2, 70, 1, 4)
    yield _core(2, 1, 1, 530, 520)
    yield _core(3, 2, 2, 19, 12)  # an odd number passes through
    for s, b, h in ((1, 1, 1), (0, 2, 3), (3, 0, 2)):
        yield _core(s, b, h, 4)
    yield _core(3, 2, 2, 16, layout="far", dtype="bfloat16")
    yield _core(2, 3, 2, 16, layout="far", dtype="bfloat16", tensor_format="bshd")
    yield _core(3, 2, 2, 16, upstream="far", dtype="bfloat16")
    # lkm2835's 64x1x16x64, cut: powers of two alone, one batch, half of the width; one program a
    # row would take seconds for the whole. Two cases, since a cause is told of no fewer
    yield _core(8, 1, 4, 64, 32)
    yield _core(2, 1, 2, 16, 8)


def _smoke_alone() -> Iterator[RopeCase]:
    """Yield each layout and further option alone, for a solution that takes no other."""
    for layout in ("strided", "offset", "transposed", "sparse"):
        yield _core(5, 2, 3, 12, 8, layout=layout)
    yield _core(5, 2, 3, 12, 8, freqs_layout="strided")
    for starts in (False, True):
        yield _extended(5, 2, 3, 16, 12, interleaved=True, starts=starts)
    for tensor_format in ("sbhd", "bshd"):
        yield _extended(5, 3, 2, 16, 8, starts=True, tensor_format=tensor_format)
        yield _extended(6, 2, 2, 16, 8, cp_size=3, cp_rank=2, tensor_format=tensor_format)
        yield _extended(2, 2, 2, 16, 8, cp_size=5, cp_rank=2, tensor_format=tensor_format)
    thd: dict[str, Any] = {"tensor_format": "thd"}
    yield _extended(0, 0, 2, 16, 8, **thd, lengths=(8, 0, 16), cp_size=4, cp_rank=3)
    # as many tokens and sequences, other lengths
    yield _extended(0, 0, 3, 16, 8, **thd, lengths=(5, 0, 1, 9), dtype="bfloat16")
    yield _extended(0, 0, 3, 16, 8, **thd, lengths=(0, 8, 7, 0))
    yield _extended(0, 0, 1, 16, 8, **thd, lengths=(99, *(1, 0, 0) * 86), ends_layout="sparse")
    yield _extended(0, 0, 2, 16, 8, **thd, lengths=(0, 0))


def _smoke_values() -> Iterator[RopeCase]:
    yield _core(17, 1, 2, 22, 10, scale=100.0)
    yield _core(6, 2, 2, 34, 2, tensor_format="bshd", dtype="float16", scale=100.0)
    yield _core(9, 2, 2, 32, apart=True)
    for dtype in ("float32", "bfloat16", "float16"):
        yield _core(5, 2, 2, 32, angles="far", dtype=dtype)
    yield _core(9, 2, 3, 32, angles="paired", dtype="bfloat16")
    for d in (24, 12):
        yield _core(5, 2, 3, d, angles="paired")
    for values in ("zeros", "subnormal", "huge"):
        yield _core(5, 2, 3, 16, 12, values=values, dtype="float16")
        yield _core(4, 2, 3, 16, 12, upstream_values=values, dtype="float16")
    yield _core(5, 2, 3, 16, 12, values="huge", tensor_format="bshd")
    # bfloat16 reaches further than float16
    yield _core(6, 2, 3, 16, 12, values="huge", upstream_values="huge", dtype="bfloat16")


# --- pairs of options -----------------------------------------------------------------------------


def case_of(row: Row) -> RopeCase:
    """Return the case of a table's row, as small as its options allow."""
    row = dict(row)
    rotated, sequences, length = (row.pop(name) for name in ("rotated", "sequences", "length"))
    starts, (cp_size, cp_rank) = row.pop("starts", "none"), row.pop("cp", (1, 0))
    tensor_format, _, ends_layout = row.pop("tensor_format").partition(", ")
    further = starts != "none" or cp_size > 1 or row.get("interleaved") or tensor_format == "thd"
    return RopeCase(
        track="extended" if further else "core",
        tensor_format=tensor_format,
        ends_layout=ends_layout or "contiguous",
        starts=starts != "none",
        starts_layout="contiguous" if starts == "none" else starts,
        cp_size=cp_size,
        cp_rank=cp_rank,
        d2=row["d"] if rotated == "all" else row["d"] - 6,
        **_sizes(tensor_format, sequences, length == "even", cp_size),
        **row,
    )


def _sizes(tensor_format: str, sequences: str, even: bool, cp_size: int) -> dict[str, Any]:
    """Return `s` and `b`, or the lengths, of which one in seven is not 0 where there are many.

    A batch, in which no kernel searches for its sequence, has nine at most.
    """
    if tensor_format != "thd":
        s, b = {"one": (5, 1), "few": (3, 2), "many": (1, 9)}[sequences]
        return {"s": s + even, "b": b}
    unit = 2 * cp_size if even else 1
    many = tuple(int(index % 7 == 0) for index in range(MANY))
    counts = {"one": (7,), "few": (3, 0, 1, 5), "many": many}[sequences]
    return {"lengths": tuple(count * unit for count in counts)}


# --- the other tiers ------------------------------------------------------------------------------

GRID = range(128, 1985, 64)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
HEADS = (1, 2, 10)


def _matrix() -> Iterator[RopeCase]:
    """Yield the 12,600 cases of Compiler_Study's grid, with 1, 2 or 10 heads in turn."""
    for format_index, tensor_format in enumerate(("sbhd", "bshd")):
        for batch_index, b in enumerate(BATCHES):
            for length_index, s in enumerate(GRID):
                for width_index, d in enumerate(GRID):
                    turn = format_index + batch_index + length_index + width_index
                    yield _core(
                        s, b, _heads(turn, s * b * d), d, d // 2,
                        tensor_format=tensor_format, scale=100.0,
                    )  # fmt: skip


def _heads(turn: int, elements: int) -> int:
    """Return this turn's number of heads, or the most that keep the tensor within 2^26."""
    allowed = [h for h in HEADS[: turn % 3 + 1] if h * elements <= 2**26]
    return max(allowed, default=1)


def _board() -> Iterator[RopeCase]:
    yield _core(16384, 1, 8, 256, angles="model")
    yield _core(1152, 16, 10, 512, 256)
    yield from _small()
    today: dict[str, Any] = {"dtype": "bfloat16", "angles": "model"}
    yield _core(8192, 2, 32, 128, **today)
    yield _core(8192, 2, 32, 128, **today | {"angles": "paired"})
    yield _core(2048, 4, 32, 128, **today)
    yield _core(8192, 2, 32, 128, 64, **today)
    yield _extended(0, 0, 32, 128, tensor_format="thd", lengths=_mixed_lengths(), **today)
    yield _extended(8192, 2, 32, 128, interleaved=True, **today)


def _small() -> Iterator[RopeCase]:
    """Yield lkm2835's shapes, small enough that the host's time decides."""
    for s, h, d in ((64, 16, 64), (128, 16, 128), (32, 8, 256)):
        yield _core(s, 1, h, d, d // 2, angles="model", ranked_by="host")


def _plot() -> Iterator[RopeCase]:
    """Yield zetwhite's sweep over the length, Compiler_Study's, and the small shapes."""
    for exponent in range(5, 15):
        yield _core(2**exponent, 1, 8, 256, angles="model")
    for s in range(256, 1153, 128):
        yield _core(s, 16, 10, 512, 256)
    yield from _small()


def _mixed_lengths() -> tuple[int, ...]:
    """Return 64 lengths of 16 to 496 tokens, 16,384 in all, long and short ones in turn."""
    return tuple(256 + (240 - 16 * (i % 31)) * (-1) ** i for i in range(62)) + (256, 256)


LONGEST_SHORT = 128
"""The longest sequence whose twin is as long as a power of two."""


def twin(case: RopeCase) -> RopeCase:
    """Cut tokens, batch and heads, no two of them to the same number; keep the rest.

    Short sequences are cut to a power of two, long ones to another number.
    """
    heads = min(case.h, 4)
    if case.lengths:
        return dataclasses.replace(case, lengths=(7, 1, 12, 4, 3), h=heads, twin=True)
    length = 12 if case.s > LONGEST_SHORT else 16
    return dataclasses.replace(case, s=length, b=min(case.b, 3), h=heads, twin=True)
