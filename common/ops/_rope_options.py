"""The options of `rope`, every pair of which a smoke case has."""

from __future__ import annotations

from common.ops._pairs import Exclusion, Factors

CORE: Factors = {
    "tensor_format": ("sbhd", "bshd"),
    "dtype": ("float32", "bfloat16", "float16"),
    "layout": ("contiguous", "strided", "offset", "transposed", "sparse", "expanded"),
    "upstream": ("contiguous", "strided", "transposed", "expanded", "reversed"),
    "freqs_layout": ("contiguous", "strided", "offset", "sparse"),
    "angles": ("random", "model", "far", "paired"),
    "spare": (True, False),
    "rotated": ("all", "part"),
    "sequences": ("one", "few"),
    "length": ("even", "odd"),
    "d": (16, 22),
    "h": (1, 3),
}
"""The options of any solution, so that one that takes no further option has every pair of them."""
EXTENDED: Factors = {
    **CORE,
    "tensor_format": ("sbhd", "bshd", "thd", "thd, sparse"),
    "layout": ("contiguous", "strided", "transposed", "sparse"),
    "freqs_layout": ("contiguous", "strided", "sparse"),
    "sequences": ("one", "few", "many"),
    "interleaved": (False, True),
    "starts": ("none", "contiguous", "sparse"),
    "cp": ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (5, 4)),
}
"""All options: `thd, sparse` has a sparse cu_seqlens, `starts` says how start_positions lies in
memory, and `cp` is the size and the rank."""
PARALLEL = EXTENDED["cp"][1:]
EXCLUDED = (
    Exclusion(
        "start_positions with context parallelism: TransformerEngine refuses it",
        starts=("contiguous", "sparse"), cp=PARALLEL,
    ),
    Exclusion(
        "an odd length with context parallelism: a rank holds two chunks of one length",
        length=("odd",), cp=PARALLEL,
    ),
)  # fmt: skip
"""The pairs that cannot be had."""
MANY = 71
"""More sequences than the 64 of a kernel that searches them in one block."""
