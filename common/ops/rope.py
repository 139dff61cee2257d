"""`rope`: rotary position embedding, to the letter of TransformerEngine's `apply_rotary_pos_emb`.

    out[..., :d2] = t[..., :d2] * cos(angle) + rotate_half(t[..., :d2]) * sin(angle)
    out[..., d2:] = t[..., d2:]

where `angle = freqs[position]`. Every feature has an angle of its own: the two halves of `freqs`
may differ, so that a gradient takes the sine of the partner: `dx1 = g1 cos1 + g2 sin2`,
`dx2 = g2 cos2 - g1 sin1`. Source: `transformer_engine/pytorch/attention/rope.py` of
TransformerEngine 2.14, the function above less its `fused` switch; RoFormer,
https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from common.ops import rotate_half
from common.ops._views import Layout, randn
from common.spec import Case, Direction, Op, Tier, Work


class Rope(Protocol):
    """Shapes:

        t                `[s, b, h, d]` (sbhd), `[b, s, h, d]` (bshd) or `[tokens, h, d]` (thd);
                         bfloat16, float16 or float32
        freqs            float32 `[s2, 1, 1, d2]` radians, d2 <= d even, s2 past every position
                         used; takes no gradient
        start_positions  int32 `[b]`: the position of each sequence's first token
        cu_seqlens       int32 `[b + 1]`: where each sequence of a thd tensor starts and the last
                         ends, counted in whole sequences
        cp_size, cp_rank context parallelism: `t` holds the tokens of this rank alone, chunks
                         `cp_rank` and `2 * cp_size - 1 - cp_rank` of each sequence's
                         `2 * cp_size`; not together with start_positions

    Returns t's shape and dtype.
    """

    def __call__(
        self,
        t: torch.Tensor,
        freqs: torch.Tensor,
        *,
        tensor_format: str = "sbhd",
        interleaved: bool = False,
        start_positions: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | None = None,
        cp_size: int = 1,
        cp_rank: int = 0,
    ) -> torch.Tensor: ...


def reference(
    t: torch.Tensor,
    freqs: torch.Tensor,
    *,
    tensor_format: str = "sbhd",
    interleaved: bool = False,
    start_positions: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> torch.Tensor:
    if tensor_format == "thd":
        assert cu_seqlens is not None, "thd needs cu_seqlens"
        lengths = (cu_seqlens // cp_size).diff().tolist()
        starts = [0] * len(lengths) if start_positions is None else start_positions.tolist()
        angles = torch.cat(
            [_of_rank(freqs[i:], n, cp_size, cp_rank) for i, n in zip(starts, lengths, strict=True)]
        )
        return _rotate(t, angles.squeeze(1), interleaved)
    length = t.shape[tensor_format.index("s")]
    if start_positions is None:
        angles = _of_rank(freqs, length, cp_size, cp_rank)
    else:
        angles = torch.cat([freqs[i : i + length] for i in start_positions.tolist()], dim=1)
    return _rotate(t, angles.transpose(0, 1) if tensor_format == "bshd" else angles, interleaved)


def _of_rank(freqs: torch.Tensor, length: int, cp_size: int, cp_rank: int) -> torch.Tensor:
    """The angles of the `length` tokens of one sequence that this rank holds."""
    if cp_size == 1:
        return freqs[:length]
    chunk = length // 2
    mirror = 2 * cp_size - 1 - cp_rank
    return torch.cat([freqs[i * chunk : (i + 1) * chunk] for i in (cp_rank, mirror)])


def _rotate(t: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    # cos and sin in float32, then rounded to t's dtype, as TransformerEngine's unfused code does
    cos, sin = angles.cos().to(t.dtype), angles.sin().to(t.dtype)
    turned, passed = t[..., : angles.shape[-1]], t[..., angles.shape[-1] :]
    turned = turned * cos + rotate_half.reference(turned, interleaved=interleaved) * sin
    return torch.cat((turned, passed), dim=-1)


@dataclass(frozen=True, kw_only=True)
class RopeCase(Case):
    """`s` is what this rank holds of each sequence; `lengths` are the whole sequences of a thd
    case, whose `s` and `b` are not used. `angles`: random; model (position times a frequency that
    falls with the feature, other ones in the second half); far (the same at a million); paired (as
    model, but both features that are turned together have one, which is all that some libraries
    can hold)."""

    sizes = ("s", "b", "h", "d", "d2")

    track: str
    s: int = 0
    b: int = 0
    h: int
    d: int
    d2: int
    tensor_format: Literal["sbhd", "bshd", "thd"] = "sbhd"
    interleaved: bool = False
    starts: bool = False
    lengths: tuple[int, ...] = ()
    cp_size: int = 1
    cp_rank: int = 0
    angles: Literal["random", "model", "far", "paired"] = "random"
    scale: float = 1.0
    layout: Layout = "contiguous"

    @property
    def name(self) -> str:
        rows = (len(self.lengths), sum(self.lengths)) if self.lengths else (self.s, self.b)
        if self.tensor_format == "bshd":
            rows = (self.b, self.s)
        parts = [self.tensor_format, "x".join(map(str, (*rows, self.h, self.d))), self.dtype]
        parts += [f"d2={self.d2}"] * (self.d2 != self.d)
        parts += ["interleaved"] * self.interleaved + ["starts"] * self.starts
        parts += [f"cp={self.cp_rank}of{self.cp_size}"] * (self.cp_size > 1)
        parts += [self.layout] * (self.layout != "contiguous")
        parts += [self.angles] * (self.angles in ("far", "paired")) + ["apart"] * self.apart
        parts += ["twin"] * self.twin
        return "-".join(parts)

    def track_of(self, direction: Direction) -> str:
        return self.track

    @property
    def shape(self) -> tuple[int, ...]:
        """t's."""
        if self.tensor_format == "thd":
            return (sum(self.lengths) // self.cp_size, self.h, self.d)
        rows = (self.s, self.b) if self.tensor_format == "sbhd" else (self.b, self.s)
        return (*rows, self.h, self.d)

    @property
    def positions(self) -> int:
        """The positions of the longest sequence that this rank touches."""
        return max(self.lengths) // self.cp_size if self.lengths else self.s


LARGEST_START = 9


def draw(case: RopeCase, generator: torch.Generator) -> dict[str, Any]:
    device = generator.device
    arguments: dict[str, Any] = {
        "t": _tokens(case, generator),
        "freqs": _angles(case, generator),
        "tensor_format": case.tensor_format,
        "interleaved": case.interleaved,
        "cp_size": case.cp_size,
        "cp_rank": case.cp_rank,
    }
    if case.lengths:
        ends = torch.tensor((0, *case.lengths), device=device).cumsum(0)
        arguments["cu_seqlens"] = ends.to(torch.int32)
    if case.starts:
        many = len(case.lengths) or case.b
        arguments["start_positions"] = torch.randint(
            LARGEST_START + 1, (many,), generator=generator, device=device, dtype=torch.int32
        )
    return arguments


def _tokens(case: RopeCase, generator: torch.Generator) -> torch.Tensor:
    """t; where its rows are apart, each is a hundred times as large as the one before."""
    t = randn(case.shape, case.dtype, case.layout, generator, case.scale)
    if not case.apart:
        return t
    powers = 100.0 ** torch.arange(-(len(t) // 2), len(t) - len(t) // 2, device=t.device)
    return (t * powers.view(-1, *[1] * (t.dim() - 1))).to(t.dtype)


def _angles(case: RopeCase, generator: torch.Generator) -> torch.Tensor:
    """float32 `[s2, 1, 1, d2]`, with more positions than are used and halves that differ."""
    device = generator.device
    used = case.positions * case.cp_size + LARGEST_START * case.starts
    if case.angles == "random":
        # twice as long, as the grid of Compiler_Study has it
        layout: Layout = "strided" if case.layout == "strided" else "contiguous"
        return randn((2 * used + 1, 1, 1, case.d2), "float32", layout, generator)
    position = torch.arange(used + 3, device=device, dtype=torch.float32)
    position += 1_000_000 * (case.angles == "far")
    feature = torch.arange(case.d2, device=device)
    if case.angles == "paired":
        pair = feature // 2 if case.interleaved else feature % max(case.d2 // 2, 1)
        return torch.outer(position, 10_000 ** (-2 * pair / max(case.d2, 1)))[:, None, None, :]
    feature = feature % max(case.d2 // 2, 1)
    other = torch.arange(case.d2, device=device) >= case.d2 // 2
    frequency = (10_000 + 5_000 * other) ** (-2 * feature / max(case.d2, 1))
    return torch.outer(position, frequency)[:, None, None, :]


def work(case: RopeCase, direction: Direction) -> Work:
    """Read and write t (backward: its gradient) once and read each angle used once; per rotated
    element two products and a sum, per angle a cosine and a sine, counted as one operation each."""
    elements = torch.Size(case.shape).numel()
    angles = case.positions * case.d2
    return Work(
        bytes=2 * elements * getattr(torch, case.dtype).itemsize + 4 * angles,
        flops=3 * elements * case.d2 // max(case.d, 1) + 2 * angles,
    )


def twin(case: RopeCase) -> RopeCase:
    """The same options, dtype and widths; tokens, batch and heads cut."""
    if case.lengths:
        return dataclasses.replace(case, lengths=(7, 1, 12, 4), h=min(case.h, 4), twin=True)
    return dataclasses.replace(
        case, s=min(case.s, 12), b=min(case.b, 4), h=min(case.h, 4), twin=True
    )


def cases(tier: Tier) -> Iterator[RopeCase]:
    yield from {"smoke": _smoke, "matrix": _matrix, "board": _board, "plot": _plot}[tier]()


def _core(s: int, b: int, h: int, d: int, d2: int | None = None, **fields: Any) -> RopeCase:
    return RopeCase(track="core", s=s, b=b, h=h, d=d, d2=d if d2 is None else d2, **fields)


def _extended(s: int, b: int, h: int, d: int, d2: int | None = None, **fields: Any) -> RopeCase:
    return dataclasses.replace(_core(s, b, h, d, d2, **fields), track="extended")


def _smoke() -> Iterator[RopeCase]:
    for dtype in ("float32", "bfloat16", "float16"):
        yield _core(7, 2, 3, 16, dtype=dtype, angles="model")
        yield _core(5, 2, 3, 80, 24, dtype=dtype, tensor_format="bshd")
        yield _extended(5, 2, 3, 16, 12, dtype=dtype, interleaved=True)
        lengths = (5, 0, 1, 9)
        yield _extended(0, 0, 3, 16, 8, dtype=dtype, tensor_format="thd", lengths=lengths)
    yield from _smoke_core()
    yield from _smoke_extended()


def _smoke_core() -> Iterator[RopeCase]:
    yield _core(20, 1, 2, 64, 32, dtype="bfloat16")
    yield _core(9, 1, 1, 6)
    yield _core(4, 3, 2, 96, 40)
    yield _core(17, 1, 2, 22, 10, scale=100.0)
    yield _core(3, 2, 10, 2)
    # past the first tile of whatever is tiled
    yield _core(70, 1, 1, 4)
    yield _core(2, 1, 35, 4)
    yield _core(2, 19, 1, 4)
    yield _core(2, 1, 1, 150, 132)
    yield _core(6, 2, 2, 34, 2, tensor_format="bshd", dtype="float16", scale=100.0)
    yield _core(9, 2, 2, 32, apart=True)
    yield _core(5, 2, 2, 32, angles="far")
    yield _core(5, 2, 2, 32, angles="far", dtype="bfloat16")
    for dtype in ("float32", "bfloat16"):
        yield _core(9, 2, 3, 32, angles="paired", dtype=dtype)
        yield _core(6, 1, 2, 40, 24, angles="paired", dtype=dtype, tensor_format="bshd")
    yield _core(5, 2, 2, 16, angles="paired", layout="strided", dtype="float16")
    for layout in ("strided", "offset", "transposed", "sparse"):
        yield _core(5, 2, 3, 12, 8, layout=layout)
        yield _core(5, 2, 3, 12, layout=layout, tensor_format="bshd", dtype="bfloat16")
    for s, b, h in ((1, 1, 1), (0, 2, 3), (3, 0, 2)):
        yield _core(s, b, h, 4)


def _smoke_extended() -> Iterator[RopeCase]:
    yield _extended(6, 2, 3, 12, interleaved=True, tensor_format="bshd", layout="strided")
    for tensor_format in ("sbhd", "bshd"):
        yield _extended(4, 3, 2, 16, 8, starts=True, tensor_format=tensor_format)
        for rank in (0, 1):
            fields = {"cp_size": 2, "cp_rank": rank, "tensor_format": tensor_format}
            yield _extended(6, 2, 2, 16, 8, **fields)
    yield _extended(4, 2, 2, 16, cp_size=4, cp_rank=2, interleaved=True)
    paired: dict[str, Any] = {"angles": "paired", "dtype": "bfloat16"}
    yield _extended(6, 2, 2, 32, 16, interleaved=True, **paired)
    yield _extended(6, 3, 2, 32, starts=True, **paired)
    thd: dict[str, Any] = {"tensor_format": "thd"}
    yield _extended(0, 0, 2, 32, **thd, **paired, lengths=(5, 0, 1, 9))
    yield _extended(0, 0, 2, 32, **thd, **paired, lengths=(5, 3), starts=True)
    yield _extended(0, 0, 2, 10, **thd, lengths=(3, 1), starts=True)
    yield _extended(0, 0, 2, 10, 6, **thd, lengths=(6, 2), interleaved=True, layout="strided")
    for rank in (0, 1, 3):
        yield _extended(0, 0, 2, 16, 8, **thd, lengths=(8, 0, 16), cp_size=4, cp_rank=rank)


GRID = range(128, 1985, 64)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
HEADS = (1, 2, 10)


def _matrix() -> Iterator[RopeCase]:
    """The 12,600 cases of Compiler_Study's grid, whose one head goes round 1, 2 and 10 here."""
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
    """The count whose turn it is, or the next lower one that keeps the tensor within 2^26."""
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
    """lkm2835's shapes, whose time is the host's."""
    for s, h, d in ((64, 16, 64), (128, 16, 128), (32, 8, 256)):
        yield _core(s, 1, h, d, d // 2, angles="model", ranked_by="host")


def _plot() -> Iterator[RopeCase]:
    """zetwhite's sweep over length, Compiler_Study's, and the small shapes."""
    for exponent in range(5, 15):
        yield _core(2**exponent, 1, 8, 256, angles="model")
    for s in range(256, 1153, 128):
        yield _core(s, 16, 10, 512, 256)
    yield from _small()


def _mixed_lengths() -> tuple[int, ...]:
    """64 sequences of 16 to 496 tokens, 16,384 in all, long ones between short ones."""
    return tuple(256 + (240 - 16 * (i % 31)) * (-1) ** i for i in range(62)) + (256, 256)


OP = Op(
    name="rope",
    interface=Rope,
    reference=reference,
    differentiable=("t",),
    tracks=("core", "extended"),
    cases=cases,
    twin=twin,
    draw=draw,
    work=work,
)
