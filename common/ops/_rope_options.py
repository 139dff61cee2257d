"""The options of `rope` and the subsets that solutions support; smoke cases cover every pair."""

from __future__ import annotations

from collections.abc import Mapping

from common.spec import Exclusion, Factors

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
PARALLEL = FACTORS["cp"][1:]
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
"""The impossible pairs."""
MANY = 71
"""A number of sequences; more than 64, which some kernels search in one block."""

PLAIN: Factors = {
    "tensor_format": ("sbhd", "bshd"),
    "sequences": ("one", "few"),
    "interleaved": (False,),
    "starts": ("none",),
    "cp": ((1, 0),),
}
PAIRED: Factors = {"angles": ("paired", "far")}
CONTIGUOUS: Factors = {
    "layout": ("contiguous",),
    "freqs_layout": ("contiguous",),
    "tensor_format": ("sbhd", "bshd", "thd"),
    "starts": ("none", "contiguous"),
}
SUBSETS: Mapping[str, Factors] = {
    "paired angles, contiguous inputs, no further option": {**CONTIGUOUS, **PLAIN, **PAIRED},
    "paired angles, contiguous inputs, no option but cu_seqlens": {
        **CONTIGUOUS, **PLAIN, **PAIRED,
        "tensor_format": ("thd",), "sequences": ("one", "few", "many"),
    },
    "paired angles, contiguous inputs, no context parallelism": {
        **CONTIGUOUS, **PAIRED, "cp": ((1, 0),),
    },
    "half types": {"dtype": ("bfloat16", "float16")},
    "sbhd": {"tensor_format": ("sbhd",)},
    "contiguous inputs": CONTIGUOUS,
    "paired angles, no option but interleaved": {**PLAIN, **PAIRED, "interleaved": (False, True)},
    "paired angles, no context parallelism": {**PAIRED, "cp": ((1, 0),)},
    "paired angles": PAIRED,
    "no further option": PLAIN,
    "bshd": {"tensor_format": ("bshd",)},
}  # fmt: skip
"""The values that common kinds of solutions support; most public kernels are of the first kind."""
