"""RoPE's turn by a quarter, in either layout."""

import torch

from .launch import Recorded
from .operators import differentiable, traceable, traced
from .rope import launch_turn
from .rope_kernel import rope_kernel


def _check(x, *how):
    if not len(x.shape) or x.shape[-1] % 2:
        raise ValueError(f"rotate_half: x {list(x.shape)} is not [..., d], d even")


@Recorded
def _map(launch, interleaved, transposed, x):
    """Return x turned; it has four dimensions at most."""
    _check(x)
    y = x.new_empty(x.shape)
    if 0 not in x.shape:
        table = x
        while len(table.shape) < 4:  # [rows, 1, 1, d], [rows, 1, heads, d]
            table = table.unsqueeze(1 if len(table.shape) > 1 else 0)
        launch_turn(launch, ("sbhd", interleaved, 1, 0, transposed), [(table, y)])
    return (y,)


_turn = differentiable(_map)
_operator = traceable(
    "rotate_half", "(Tensor x, bool interleaved, bool transposed) -> Tensor",
    _map, _check, rope_kernel, instead="x may have any number of dimensions",
)  # fmt: skip


def rotate_half(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Return [-x2, x1] for the halves [x1, x2] of x [..., d], d even; `interleaved`, for the pairs.

    With `interleaved`, (x[2i], x[2i + 1]) becomes (-x[2i + 1], x[2i]). Returns x's shape and dtype.

    Raises:
        ValueError: d is odd, or x has no dimension.
    """
    if len(x.shape) > 4:
        return rotate_half(x.flatten(0, -4), interleaved=interleaved).view(x.shape)
    how = interleaved, False
    return _operator(x, *how) if traced() else _turn((how,), x)[0]
