"""Read a case from its name: the sizes, the dtype and the options that it states."""

from __future__ import annotations

import dataclasses
import itertools
import re
import typing
from collections.abc import Collection, Mapping
from typing import Any

from common.errors import UserError, did_you_mean
from common.ops._draw import draw
from common.spec import C, Case, Op, Tier, words_of

TIERS: tuple[Tier, ...] = ("board", "plot", "smoke")
"""The tiers whose cases have precedence over a reading of their names."""


class Impossible(UserError):
    """A name that says no case of an op."""

    def __init__(self, op: str, name: str, fault: object, read: int) -> None:
        """Take the op, the name, what is wrong with it, and how many of its parts are right."""
        super().__init__(f"no case {name} of {op}: {fault}")
        self.read = read


def named(op: Op[C], name: str) -> C:
    """Return the case of a name: an op's own, or the one that the parts of the name say.

    For example `bshd-1x8192x16x128-bfloat16-paired` of `rope`, which no tier need have. The name of
    a twin is that of its board case.

    Raises:
        Impossible: The name says no case of the op.
    """
    known = itertools.chain(*map(op.cases, TIERS), [op.large] if op.large else [])
    for case in known:
        if name == (op.twin(case) if name.endswith("-twin") else case).name:
            return case
    words = name.split("-")
    count = len(words)
    try:
        read: C = of_head_and_options(type(next(op.cases("board"))), words).settled()
        if not read.far_bytes:  # what else is impossible, the reference refuses
            op.reference(**draw(op, op.twin(read), 0, "cpu")[0])
    except (ValueError, RuntimeError, AssertionError) as fault:
        raise Impossible(op.name, name, fault, count - len(words)) from None
    return read


def of_ops(ops: Collection[Op[Any]], name: str) -> list[tuple[Op[Any], Case]]:
    """Return the case of a name for each op that can say it, or the one whose name begins so.

    Raises:
        Impossible: No op can, and no case or several begin so; the fault is that of the op which
            could read the most parts.
    """
    found, faults = [], []
    for op in ops:
        try:
            found.append((op, named(op, name)))
        except Impossible as fault:
            faults.append(fault)
    if not found:
        every = ((op, case) for op in ops for tier in TIERS for case in op.cases(tier))
        begun = {case.name: [(op, case)] for op, case in every if case.name.startswith(name)}
        if len(begun) != 1:
            raise max(faults, key=lambda fault: fault.read)
        (found,) = begun.values()
    return found


# --- the parts of a head --------------------------------------------------------------------------


def sizes(words: list[str], letters: str = "") -> tuple[int, ...]:
    """Take the sizes from the first word: `[8192, 2, 32, 128]` of `8192x2x32x128`.

    Raises:
        ValueError: The word has no sizes, a size is 0, or there are not as many as `letters`.
    """
    word = words[0] if words else ""
    wanted = f"the sizes {letters}" if letters else "sizes, such as 8192x4096"
    found = tuple(map(int, word.split("x"))) if re.fullmatch(r"\d+(x\d+)*", word) else ()
    if not found or (letters and len(found) != len(re.findall(r"\w+", letters))):
        raise ValueError(f"{word or 'nothing'} stands in place of {wanted}")
    if 0 in found:
        raise ValueError(f"{word} has a size of 0")
    del words[0]
    return found


def one_of(words: list[str], known: Collection[str], what: str) -> str:
    """Take the first word, which is one of the known words; `what` they are is for the message.

    Raises:
        ValueError: It is none of them.
    """
    word = words[0] if words else ""
    if word not in known:
        close = did_you_mean(word, known) or f"; there are {', '.join(known)}"
        raise ValueError(f"{word or 'nothing'} stands in place of {what}{close}")
    return words.pop(0)


# --- the options ----------------------------------------------------------------------------------


def of_head_and_options(kind: type[C], words: list[str]) -> C:
    """Return the case that the words of a name say, less what the name leaves open.

    The options are read from the last on, with the fields that a name has last: `far` alone is of
    the angles, `far-paired` is a far layout and paired angles. Words that were read are taken away.

    Raises:
        ValueError: The words begin with no head, or no further field of the case has such a word.
    """
    case, hints = kind.of_head(words), typing.get_type_hints(kind)
    every = [*case.described("option", "layout", "data")][::-1]
    left = every.copy()
    while words:
        for field in left:
            if stated := _stated(field, words[-1], hints):
                case = dataclasses.replace(case, **stated)
                left.remove(field)
                del words[-1]
                break
        else:
            if any(_stated(field, words[-1], hints) for field in every):
                raise ValueError(f"{words[-1]!r} repeats or contradicts a later option")
            known = [text for field in left for text in _texts(field, hints)]
            raise ValueError(f"no option is called {words[-1]!r}{did_you_mean(words[-1], known)}")
    return case


def _texts(field: dataclasses.Field[Any], hints: Mapping[str, Any]) -> list[str]:
    """Return the words of a field that can be listed."""
    template, hint = words_of(field), hints[field.name]
    if isinstance(template, Mapping):
        return [*template.values()]
    values = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    return [template.replace(f"{{0.{field.name}}}", str(value)) for value in values]


def _stated(field: dataclasses.Field[Any], word: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of fields that a word states, none if the word is another field's.

    `cp=1of2` of the pattern `cp={0.cp_rank}of{0.cp_size}` gives `{"cp_rank": 1, "cp_size": 2}`.
    """
    template = words_of(field)
    if isinstance(template, Mapping):
        found = [value for value, text in template.items() if text == word]
        return {field.name: found[0]} if found else {}
    part = re.compile(r"{0\.(\w+)[^}]*}")
    names, texts = part.findall(template), part.split(template)[::2]
    match = re.fullmatch("(.+)".join(map(re.escape, texts)), word)
    said = match.groups() if match else ()
    values = {name: _value(hints[name], text) for name, text in zip(names, said, strict=False)}
    return {} if None in values.values() else values


def _value(hint: Any, text: str) -> Any:
    """Return the value of a field's type that a text in a name stands for; None for none."""
    if typing.get_origin(hint) is typing.Literal:
        return next((value for value in typing.get_args(hint) if str(value) == text), None)
    try:
        return hint(text)
    except (TypeError, ValueError):
        return None
