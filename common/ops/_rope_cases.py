"""The cases of `rope`: the fields from which inputs are drawn, and the cases of each tier."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import Any, ClassVar, Literal, Self, get_args

from common import spec
from common.ops import _names, rotate_half
from common.ops._pairs import Factors, PairTable, Row
from common.spec import DTYPES, Case, Fact, Layout, Tier, described

Format = Literal["sbhd", "bshd", "thd"]
GIVEN: Mapping[Any, Fact] = {True: "given", False: "None"}
SPARE: Mapping[Any, Fact] = {True: "past the last position", False: "the number of positions"}


@dataclass(frozen=True, kw_only=True)
class RopeCase(Case):
    """One input of `rope`; a thd case has `lengths` in place of `s` and `b`."""

    lists: ClassVar[tuple[str, ...]] = ("lengths",)
    together: ClassVar[tuple[str, ...]] = ("cp_size", "cp_rank")
    formats: ClassVar[tuple[str, ...]] = get_args(Format)

    s: int
    """The number of tokens of each sequence that this rank holds."""
    b: int
    h: int
    d: int
    d2: int
    lengths: tuple[int, ...] = ()
    """The number of tokens of each sequence of a thd case, over all ranks."""
    tensor_format: Format = described("option", "sbhd", "")
    interleaved: bool = described("option", False)
    starts: bool = described("option", False, None, "start_positions", GIVEN)
    """The call has start_positions."""
    cp_size: int = described("option", 1, "cp={0.cp_rank}of{0.cp_size}")
    cp_rank: int = described("option", 0, "")
    angles: Literal["random", "model", "paired", "far"] = described(
        "data", "random", {"paired": "paired", "far": "far"}
    )
    """The values of freqs:

    * random: normal values
    * model: position times a frequency that falls with the feature; the second half has different
      frequencies
    * paired: as model, but both features of a pair have the same angle, as in nearly every RoPE
      outside of TransformerEngine; from position 1 on
    * far: as paired, from position 1,000,000 on
    """
    spare: bool = described("data", True, "tight", "s2", SPARE)
    """freqs has unused positions at its end, so that a read past the last position is no error."""
    rate: float = 1.0
    """A factor of the frequencies, below 1 for longer contexts; not applied to random angles."""
    scale: float = described("data", 1.0, "")
    """The standard deviation of t."""
    freqs_layout: Layout = described("layout", "contiguous")
    starts_layout: Layout = described("layout", "contiguous", fact="start_positions")
    ends_layout: Layout = described("layout", "contiguous", fact="cu_seqlens")

    @property
    def head(self) -> list[str]:
        """`sbhd-8192x2x32x128-bfloat16`: format, t's shape, dtype, and a part that is rotated."""
        named = {**vars(self), "sequences": len(self.lengths), "tokens": sum(self.lengths)}
        sizes = "x".join(str(named[each]) for each in self.letters(self.tensor_format).split(", "))
        return [self.tensor_format, sizes, self.dtype, *[f"d2={self.d2}"] * (self.d2 != self.d)]

    @classmethod
    def letters(cls, tensor_format: str) -> str:
        """Return what the sizes of a name are, in their order."""
        return "sequences, tokens, h, d" if tensor_format == "thd" else ", ".join(tensor_format)

    @classmethod
    def of_head(cls, words: list[str]) -> Self:
        """Read a head; a thd case's second size is the number of its tokens.

        The angles are those of a model, until the name says another.
        """
        tensor_format: Any = _names.one_of(words, cls.formats, "a format")
        letters = cls.letters(tensor_format)
        named = zip(letters.split(", "), _names.sizes(words, letters), strict=True)
        fields: dict[str, Any] = {"s": 0, "b": 0, **dict(named)}
        if count := fields.pop("sequences", 0):
            fields["lengths"] = (fields.pop("tokens"), *[0] * (count - 1))
        dtype = _names.one_of(words, DTYPES, "a dtype")
        d2 = int(words.pop(0)[3:]) if words and re.fullmatch(r"d2=\d+", words[0]) else fields["d"]
        return cls(**fields, d2=d2, dtype=dtype, tensor_format=tensor_format, angles="model")

    def settled(self) -> Self:
        """Cut the tokens of a thd case, which its name counts, to short and long sequences in turn.

        Raises:
            ValueError: The format, the rotated width, the rank or the lengths are impossible.
        """
        if self.tensor_format not in self.formats:
            raise ValueError(f"the format is {' or '.join(self.formats)}, not {self.tensor_format}")
        if self.d2 % 2 or not 0 < self.d2 <= self.d:
            raise ValueError(f"d2={self.d2} is no even part of d={self.d}")
        if not 0 <= self.cp_rank < self.cp_size:
            raise ValueError(f"{self.cp_size} ranks have no rank {self.cp_rank}")
        if self.cp_size > 1 and self.s % 2:
            raise ValueError(f"a rank holds two chunks of one length, so that s={self.s} is even")
        count, total = len(self.lengths), sum(self.lengths)
        chunks = 2 * self.cp_size if self.cp_size > 1 else 1
        if total % chunks:
            raise ValueError(f"{total} tokens have no {chunks} chunks of one length")
        shares = [2 * i - (i % 2) * (i < count) for i in range(count + 1)]
        ends = [share * (total // chunks) // max(2 * count, 1) for share in shares]
        lengths = tuple(chunks * (end - begin) for begin, end in pairwise(ends))
        return dataclasses.replace(self, lengths=lengths)

    @property
    def measures(self) -> dict[str, Fact]:
        """The sizes; in a thd case `s` is the longest sequence and `b` the number of sequences."""
        b = len(self.lengths) or self.b
        return {"s": self.positions, "b": b, "h": self.h, "d": self.d, "d2": self.d2}

    @property
    def paired(self) -> bool:
        """Whether both features of a pair have the same angle."""
        return self.angles in ("paired", "far")

    @property
    def group(self) -> str:
        """The angles, the dtype, the pairing (halves or interleaved) and the format."""
        return f"{self.paired} {self.dtype} {self.interleaved} {self.tensor_format}"

    def changed(self, dice: random.Random) -> Self:
        """Return the case with shuffled sequences and lower frequencies."""
        lengths = tuple(dice.sample(self.lengths, len(self.lengths)))
        return dataclasses.replace(self, lengths=lengths, rate=dice.choice((0.5, 0.75)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of t and of the output."""
        tokens = sum(self.lengths) // self.cp_size
        sizes = {"s": self.s, "b": self.b, "t": tokens, "h": self.h, "d": self.d}
        return tuple(sizes[letter] for letter in self.tensor_format)

    @property
    def positions(self) -> int:
        """This rank's number of positions of the longest sequence."""
        return max(self.lengths) // self.cp_size if self.lengths else self.s


def track_of(case: RopeCase) -> str:
    """Return the track of a case."""
    if case.starts or case.cp_size > 1:
        return "extended"
    if case.lengths:
        return "packed"
    if not case.paired:
        return "extended" if case.interleaved else "core"
    if case.interleaved:
        return "interleaved"
    return "partial" if case.d2 < case.d else "standard"


# --- pairs of options -----------------------------------------------------------------------------

FACTORS: Factors = {
    "tensor_format": ("sbhd", "bshd", "thd", "thd, sparse"),
    "dtype": ("float32", "bfloat16", "float16"),
    "layout": ("contiguous", "strided", "transposed", "sparse"),
    "upstream": ("contiguous", "strided", "transposed", "expanded"),
    "freqs_layout": ("contiguous", "strided", "sparse"),
    "angles": ("random", "paired", "far"),
    "spare": (True, False),
    "rotated": ("all", "part"),
    "sequences": ("one", "few", "many"),
    "length": ("even", "odd"),
    "d": (16, 22),
    "h": (1, 3),
    "interleaved": (False, True),
    "starts": ("none", "contiguous", "sparse"),
    "cp": ((1, 0), (2, 1), (3, 2)),
}
"""All options: `thd, sparse` has a sparse cu_seqlens, `starts` is the layout of start_positions,
and `cp` is `(cp_size, cp_rank)`."""


def _is_possible(row: Row) -> bool:
    """Return whether options can be combined.

    With context parallelism, TransformerEngine refuses start_positions, and the length is even,
    since a rank holds two chunks of one length.
    """
    alone = row.get("starts", "none") == "none" and row.get("length") != "odd"
    return alone or row.get("cp", (1, 0)) == (1, 0)


def of_row(
    *, tensor_format: str, rotated: str, sequences: str, length: str, starts: str,
    cp: tuple[int, int], **fields: Any,
) -> RopeCase:  # fmt: skip
    """Return the case of a table's row, as small as its options allow.

    Of `many` lengths, six in seven are 0; they are 71, since some kernels search 64 sequences in
    one block. A batch has at most nine sequences: no kernel searches there for a token's sequence.
    """
    even = length == "even"
    s, b = {"one": (5, 1), "few": (3, 2), "many": (1, 9)}[sequences]
    fields |= {"s": s + even, "b": b, "tensor_format": tensor_format}
    if tensor_format.startswith("thd"):
        many = [int(index % 7 == 0) for index in range(71)]
        counts = {"one": [7], "few": [3, 0, 1, 5], "many": many}[sequences]
        lengths = tuple(count * (2 * cp[0] if even else 1) for count in counts)
        fields |= {"s": 0, "b": 0, "tensor_format": "thd", "lengths": lengths}
    if tensor_format == "thd, sparse":
        fields["ends_layout"] = "sparse"
    if starts != "none":
        fields |= {"starts": True, "starts_layout": starts}
    d2 = fields["d"] - 6 * (rotated == "part")
    return RopeCase(cp_size=cp[0], cp_rank=cp[1], d2=d2, **fields)


PLAIN: Factors = {
    "tensor_format": ("sbhd", "bshd"),
    "sequences": ("one", "few"),
    "interleaved": (False,),
    "starts": ("none",),
    "cp": ((1, 0),),
}
PACKED: Factors = {**PLAIN, "tensor_format": ("thd",), "sequences": ("one", "few", "many")}
PAIRED: Factors = {"angles": ("paired", "far")}
NOT_PARALLEL: Factors = {"cp": ((1, 0),)}
CONTIGUOUS: Factors = {
    "layout": ("contiguous",),
    "freqs_layout": ("contiguous",),
    "tensor_format": ("sbhd", "bshd", "thd"),
    "starts": ("none", "contiguous"),
}
SUBSETS: tuple[Factors, ...] = (
    {**CONTIGUOUS, **PLAIN, **PAIRED},  # most public kernels
    {**CONTIGUOUS, **PACKED, **PAIRED},
    {**CONTIGUOUS, **PAIRED, **NOT_PARALLEL},
    {"dtype": ("bfloat16", "float16")},
    {"tensor_format": ("sbhd",)},
    CONTIGUOUS,
    {**PLAIN, **PAIRED, "interleaved": (False, True)},
    {**PAIRED, **NOT_PARALLEL},
    PAIRED,
    PLAIN,
    {"tensor_format": ("bshd",)},
)
"""The values that common kinds of solutions support."""
TABLE = PairTable(FACTORS, of_row, SUBSETS, _is_possible)

# --- cases ----------------------------------------------------------------------------------------


def cases(tier: Tier) -> Iterator[RopeCase]:
    """Yield the cases of a tier."""
    yield from {"smoke": _smoke, "matrix": _matrix, "board": _board, "plot": _plot}[tier]()


def _case(
    s: int, b: int, h: int, d: int, d2: int | None = None, angles: Any = "paired", **fields: Any
) -> RopeCase:
    """Return a case, as usual with paired angles, since most solutions support no others."""
    return RopeCase(s=s, b=b, h=h, d=d, d2=d if d2 is None else d2, angles=angles, **fields)


def _smoke() -> Iterator[RopeCase]:
    """Yield the smoke cases."""
    yield _case(7, 2, 3, 16, angles="model")
    yield _case(20, 1, 2, 64, 32, dtype="bfloat16")
    yield _case(5, 2, 3, 80, 24, tensor_format="bshd", dtype="float16")
    yield _case(3, 2, 10, 2)
    # the last block of tokens is full, too; a kernel that counts positions in bfloat16, which
    # cannot represent 257, fails
    yield _case(512, 1, 1, 4, dtype="bfloat16")
    # more than one tile along each dimension in turn
    for sizes in ((130, 1, 1, 4), (2, 1, 130, 4), (2, 70, 1, 4), (2, 1, 1, 530, 520)):
        yield _case(*sizes)
    yield _case(3, 2, 2, 19, 12)  # an odd number of features passes through
    for d in (24, 12):  # power-of-two blocks overrun a row
        yield _case(5, 2, 3, d)
    for s, b, h in ((1, 1, 1), (0, 2, 3), (3, 0, 2)):
        yield _case(s, b, h, 4)
    yield _case(3, 2, 2, 16, layout="far", dtype="bfloat16")
    yield _case(2, 3, 2, 16, layout="far", dtype="bfloat16", tensor_format="bshd")
    yield _case(3, 2, 2, 16, upstream="far", dtype="bfloat16")
    # reduced cases of lkm2835's 64x1x16x64: only powers of two, one batch, half of the width is
    # rotated; the full case would take seconds with one program for each row. Two cases, the fewest
    # for which `check` names a cause
    yield _case(8, 1, 4, 64, 32, angles="random")
    yield _case(2, 1, 2, 16, 8, angles="random")
    # a single layout or option, for solutions that support no other
    for layout in ("strided", "offset", "transposed", "sparse", "expanded"):
        yield _case(5, 2, 3, 12, 8, layout=layout)
    yield _case(5, 2, 3, 12, 8, freqs_layout="strided")
    for dtype in ("float32", "bfloat16"):
        yield _case(5, 2, 3, 20, upstream="reversed", dtype=dtype)
    yield _case(5, 2, 3, 16, 12, interleaved=True)
    for tensor_format in ("sbhd", "bshd"):
        yield _case(6, 2, 2, 16, 8, cp_size=3, cp_rank=0, tensor_format=tensor_format)
        yield _case(2, 2, 2, 16, 8, "random", cp_size=5, cp_rank=4, tensor_format=tensor_format)
    thd: dict[str, Any] = {"tensor_format": "thd"}
    yield _case(0, 0, 2, 16, 8, **thd, lengths=(8, 0, 16), cp_size=4, cp_rank=3, angles="random")
    # two cases with the same number of tokens and sequences, but different lengths
    yield _case(0, 0, 3, 16, 8, **thd, lengths=(5, 0, 1, 9), dtype="bfloat16")
    yield _case(0, 0, 3, 16, 8, **thd, lengths=(0, 8, 7, 0))
    yield _case(
        0, 0, 1, 16, 8, **thd, lengths=(99, *(1, 0, 0) * 86), ends_layout="sparse", angles="random"
    )
    yield _case(0, 0, 2, 16, 8, **thd, lengths=(0, 0))
    # values
    yield _case(17, 1, 2, 22, 10, scale=100.0)
    yield _case(6, 2, 2, 34, 2, tensor_format="bshd", dtype="float16", scale=100.0)
    yield _case(9, 2, 2, 32, values="apart")
    for values in ("zeros", "subnormal", "huge"):
        yield _case(5, 2, 3, 16, 12, values=values, dtype="float16")
        yield _case(4, 2, 3, 16, 12, upstream_values=values, dtype="float16")
    yield _case(5, 2, 3, 16, 12, values="huge", tensor_format="bshd")
    # bfloat16 has a larger range than float16
    yield _case(6, 2, 3, 16, 12, values="huge", upstream_values="huge", dtype="bfloat16")
    yield from TABLE.cases()


LARGE = _case(4104, 32, 128, 128, dtype="bfloat16")


def _matrix() -> Iterator[RopeCase]:
    """Yield the 12,600 cases of Compiler_Study's grid.

    They alternate 1, 2 and 10 heads, or fewer, which keeps t within 2^26 elements.
    """
    grid = range(128, 1985, 64)
    options = (("sbhd", "bshd"), (1, 2, 4, 8, 16, 32, 64), grid, grid)
    for numbered in product(*map(enumerate, options)):
        indices, (tensor_format, b, s, d) = zip(*numbered, strict=True)
        heads = [h for h in (1, 2, 10)[: sum(indices) % 3 + 1] if h * s * b * d <= 2**26]
        h = max(heads, default=1)
        yield _case(s, b, h, d, d // 2, tensor_format=tensor_format, scale=100.0, angles="random")


def _board() -> Iterator[RopeCase]:
    """Yield queries and keys of common models, partial and interleaved rotation, other angles."""
    half: dict[str, Any] = {"dtype": "bfloat16"}
    bshd: dict[str, Any] = {"tensor_format": "bshd", **half}
    # decoding with Llama 3 8B and 70B: one token for each sequence; `far`, since position 0 rotates
    # nothing
    for b, h in ((1, 32), (64, 64)):
        yield _case(1, b, h, 128, angles="far", **bshd, ranked_by="host")
    yield _case(1024, 1, 32, 64, **bshd, ranked_by="host")  # Llama 3.2 1B, a short prompt
    # early, since a loop over thousands of sequences takes minutes, for which other GPUs would wait
    # at the end; 65,536 tokens: 64 long and short sequences, then short ones and a long one, so
    # that on a grid of longest by number 30 million programs have no token
    packed: dict[str, Any] = {"tensor_format": "thd", **half}
    yield _case(0, 0, 8, 128, lengths=(512, 1536) * 32, **packed)
    for count, most in ((2401, 51), (8192, 14)):
        short = [1 + 5 * i % most for i in range(count - 1)]
        lengths = (*short[:1000], 65536 - sum(short), *short[1000:])
        yield _case(0, 0, 8, 128, lengths=lengths, **packed)
    yield _case(2048, 8, 32, 64, **bshd)
    yield _case(8192, 1, 32, 128, **bshd)  # Llama 3 8B: queries, then grouped keys
    yield _case(8192, 2, 8, 128, **bshd)
    yield _case(8192, 1, 16, 256, **bshd)  # Gemma 2 9B
    yield _case(16384, 1, 64, 128, **bshd)  # Llama 3 70B
    yield _case(131072, 1, 8, 128, **bshd)  # Llama 3 70B: keys, at the longest context
    yield _case(8192, 2, 32, 128, **half)  # Megatron's layout
    yield _case(2048, 8, 16, 64, tensor_format="sbhd", dtype="float16")
    yield _case(8192, 1, 32, 128, 64, **bshd)  # GLM 4
    yield _case(8192, 1, 16, 256, 64, **bshd)  # Qwen 3 Next
    yield _case(8192, 2, 32, 128, 64, **half)
    yield _case(8192, 1, 64, 64, interleaved=True, **bshd)  # DeepSeek V3's rotated part
    yield _case(8192, 1, 1, 64, interleaved=True, **bshd, ranked_by="host")
    yield _case(8192, 2, 32, 128, interleaved=True, **half)
    current: dict[str, Any] = {"dtype": "bfloat16", "angles": "model"}
    yield _case(16384, 1, 8, 256, angles="model")
    yield _case(1152, 16, 10, 512, 256, angles="random")
    yield from _small()
    yield _case(8192, 2, 32, 128, **current)
    yield _case(2048, 4, 32, 128, **current)
    yield _case(8192, 2, 32, 128, 64, **current)
    yield _case(8192, 2, 32, 128, interleaved=True, **current)


def _small() -> Iterator[RopeCase]:
    """Yield lkm2835's shapes, so small that the host's time dominates."""
    for s, h, d in ((64, 16, 64), (128, 16, 128), (32, 8, 256)):
        yield _case(s, 1, h, d, d // 2, angles="model", ranked_by="host")


def _plot() -> Iterator[RopeCase]:
    """Yield the length sweeps of zetwhite and of Compiler_Study, and the small shapes."""
    for exponent in range(5, 15):
        yield _case(2**exponent, 1, 8, 256, angles="model")
    for s in range(256, 1153, 128):
        yield _case(s, 16, 10, 512, 256, angles="random")
    yield from _small()


def twin(case: RopeCase) -> RopeCase:
    """Return the reduced case: fewer tokens, batches and heads, cut to different numbers.

    Numbers of heads differ up to 32 and above, numbers of packed sequences up to 1,024 and above.
    Sequences of up to 128 tokens are cut to a power of two, up to 32,768 to 12, longer ones to 20.
    """
    heads = min(case.h, 4) + (case.h > 32)
    if case.lengths:
        many = len(case.lengths) > 1024
        cut = (1, 3, 0, 2, 19, 1, 2) if many else (7, 1, 12, 4, 3)
        chunks = 2 * case.cp_size if case.cp_size > 1 else 1
        lengths = tuple(chunks * length for length in cut)
        return dataclasses.replace(case, lengths=lengths, h=heads, twin=True)
    length = min(case.s, 16) if case.s <= 128 else 12 if case.s <= 32_768 else 20
    return dataclasses.replace(case, s=length, b=min(case.b, 3), h=heads, twin=True)


DIMENSIONS = {"s": "position", "b": "batch", "t": "token", "h": "head", "d": "feature"}
"""The names of dimensions, by their letters in a format."""


def axes(case: RopeCase, arguments: Mapping[str, Any]) -> spec.Axes:
    """Name the dimensions of the output and of t's gradient, and parts of each dimension."""
    s, d, d2 = case.s, case.d, case.d2
    ends = [0, *accumulate(length // case.cp_size for length in case.lengths)]
    sequences = {f"sequence {index}": range(*each) for index, each in enumerate(pairwise(ends))}
    sequences = {name: tokens for name, tokens in sequences.items() if tokens}
    firsts = {tokens[0] for tokens in sequences.values()}
    parts: dict[str, Mapping[str, Any]] = {
        "token": {
            **sequences,
            "the first token of each sequence": firsts,
            "all but the first token of each sequence": {*range(ends[-1])} - firsts,
            "all but the first sequence": range(ends[1], ends[-1]) if ends[1:] else (),
        },
        "feature": {
            **rotate_half.halves(d2, case.interleaved, " of the rotated features"),
            "the rotated features": range(d2),
            "the unrotated features": range(d2, d),
        },
    }
    if case.cp_size > 1:
        halves = range(s // 2), range(s // 2, s)
        parts["position"] = {"this rank's first chunk": halves[0], "its second chunk": halves[1]}
    names = [DIMENSIONS[letter] for letter in case.tensor_format]
    named = tuple(spec.Axis(name, parts.get(name, {})) for name in names)
    return {"output": named, "t": named}
