"""Which calls of rope there are, and the sizes of their launches."""

from typing import NamedTuple

import torch
import triton

from .launch import Uneven

LAYOUTS = {"sbhd": "[s, b, h, d]", "bshd": "[b, s, h, d]", "thd": "[tokens, h, d]"}
LOOK = 128
"""Entries of `cu_seqlens` that the kernel looks at once."""


def check(t, freqs, starts, ends, *how):
    """Raise ValueError if there is no such call of rope; the kernel would read past a tensor.

    Values on the GPU are not looked at: those of start_positions and cu_seqlens are the caller's.
    """
    for fault in _faults(t, freqs, starts, ends, *how):
        raise ValueError(f"rope: {fault}")


def require_contiguous_features(*tensors):
    """Raise Uneven for tensors whose features are not contiguous."""
    if uneven := [each for each in tensors if each.stride()[-1] != 1]:
        raise Uneven(*uneven)


def _faults(t, freqs, starts, ends, tensor_format, interleaved, cp_size, cp_rank, transposed):
    """Yield what is wrong with a call; where something is, what follows may raise."""
    shapes = f"t {list(t.shape)}, freqs {list(freqs.shape)}"
    if tensor_format not in LAYOUTS:
        yield f"tensor_format is {tensor_format!r}, not one of {', '.join(LAYOUTS)}"
    if (tensor_format == "thd") != (ends is not None):
        yield f"cu_seqlens belongs to thd, and thd needs it; tensor_format is {tensor_format!r}"
    if len(t.shape) != LAYOUTS[tensor_format].count(",") + 1:
        yield f"t {list(t.shape)} is not {LAYOUTS[tensor_format]} ({tensor_format})"
    if len(freqs.shape) != 4 or freqs.shape[1] != 1 or freqs.shape[2] != 1:
        yield f"freqs {list(freqs.shape)} is not [s2, 1, 1, d2]"
    if freqs.shape[-1] % 2 or freqs.shape[-1] > t.shape[-1]:
        yield f"freqs turns an even number of features, and no more than t has: {shapes}"
    if not (t.dtype.is_floating_point and freqs.dtype.is_floating_point):
        yield f"t and freqs are of floating point, not {t.dtype} and {freqs.dtype}"
    for name, each in (("start_positions", starts), ("cu_seqlens", ends)):
        known = each is None or each.dtype in (torch.int32, torch.int64)
        if not known or (each is not None and len(each.shape) != 1):
            yield f"{name} is a list of int32, not {list(each.shape)} of {each.dtype}"
    if not 0 <= cp_rank < cp_size:
        yield f"cp_rank {cp_rank} is not one of {cp_size} ranks"
    if ends is not None:
        sequences = ends.shape[0] - 1
        if sequences < 0 or (sequences == 0 and t.shape[0]):
            yield "cu_seqlens is [b + 1], from 0 to the number of tokens"
    else:
        at = tensor_format.index("s")
        length, sequences = t.shape[at], t.shape[1 - at]
        if cp_size > 1 and length % 2:
            yield f"with context parallelism t has two chunks of each sequence: {shapes}"
        if length * cp_size > freqs.shape[0]:
            yield f"freqs has fewer positions than the {cp_size} times {length} of t: {shapes}"
    if starts is not None and starts.shape[0] != sequences:
        yield f"start_positions is [b], not {list(starts.shape)}, where b is {sequences}"


class Table(NamedTuple):
    """The tokens of t, as a table [rows, columns] of heads."""

    tokens: int
    columns: int
    heads: int
    width: int
    length: int  # of a sequence; 0 where the sequences have lengths of their own
    strides: tuple[int, int, int]  # of rows, columns and heads


def table_of(t, tensor_format, as_heads):
    """Return the table of t.

    as_heads: No sequence has a position of its own. Then the columns of [s, b] share one, and are
    taken as further heads where they lie in memory as heads do.
    """
    # int(): torch.compile may not know the sizes, and the kernel takes these as constants
    heads, width = map(int, t.shape[-2:])
    if tensor_format == "thd":
        row, head, _ = t.stride()
        return Table(t.shape[0], 1, heads, width, 0, (row, 0, head))
    (rows, columns, _, _), (row, column, head, _) = t.shape, t.stride()
    length = columns if tensor_format == "bshd" else rows
    if as_heads and tensor_format == "sbhd" and column == heads * head:
        heads, columns = heads * columns, 1
    return Table(rows * columns, columns, heads, width, length, (row, column, head))


class Blocks(NamedTuple):
    """The number of programs of a launch, and the tokens and heads of each."""

    programs: int
    count: int  # of blocks of a token's heads
    constants: dict[str, int]
    warps: int


def blocks_of(table, itemsize, alone=True):
    """Return the blocks of a table's launch; alone, no other tensor is turned by it.

    A program has 4 KiB of t, or a little more where a width is no power of two: more of them wait
    for memory at once than with 8 KiB, and fewer compute the same angles than with 2 KiB. Tokens of
    less than 2 KiB share one. A thread has at least one angle, and two in a program with lanes that
    have no feature or no head.
    """
    heads, width = table.heads, table.width
    whole = max(triton.next_power_of_2(width), 2)
    rows = triton.next_power_of_2(max(4096 // (width * itemsize), 1))
    block_h = min(triton.next_power_of_2(heads), rows)
    block_t = rows // block_h if 2 * block_h < rows else 1
    block, block_2, split, turns = whole, 0, width, 1
    if block_t > 1 and alone:  # few heads: the angles are most of the work
        turns = 2 if block_h == 2 else 1
        rest = triton.next_power_of_2(width - whole // 2)
        if 16 <= rest < whole // 2:  # 128 and 64 lanes for a width of 192
            block, block_2, split = whole // 2, rest, whole // 2
    angles, count = block_t * whole, triton.cdiv(heads, block_h)
    if block_t == 1 and (width < whole or heads < block_h):
        angles //= 2
    constants = {"BLOCK_T": block_t, "BLOCK_H": block_h // turns, "TURNS": turns}
    constants |= {"BLOCK": block, "BLOCK_2": block_2, "SPLIT": split}
    programs = triton.cdiv(table.tokens, block_t) * count
    return Blocks(programs, count, constants, min(max(angles // 32, 1), 4))


def constants_of(table, freqs, ends, tensor_format, interleaved, cp_size, cp_rank, transposed):
    """Return the constants of a kernel that follow from a call."""
    step, sequences = 1, 0 if ends is None else ends.shape[0] - 1
    if sequences > LOOK:  # few steps, since a kernel is compiled for each
        entries = triton.next_power_of_2(triton.cdiv(sequences, LOOK))
        step = 16 if entries <= 16 else max(entries, 128)
    return {
        "CP_SIZE": cp_size, "WIDTH": table.width, "ROTARY": int(freqs.shape[-1]),
        "SEQ_FIRST": tensor_format != "bshd", "INTERLEAVED": interleaved,
        "TRANSPOSED": transposed, "STEP": step,
    }  # fmt: skip
