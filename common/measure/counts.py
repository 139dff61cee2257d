"""The counted work of a run without a GPU, as lines of its record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from common.grading import counting
from common.grading.counting import Count
from common.records.lines import SCHEMA, Counted, Steps
from common.solutions import Solution
from common.spec import DIRECTIONS


def counts(
    solutions: Sequence[Solution], run: str, digests: Mapping[Solution, tuple[str, str]]
) -> Iterator[Counted]:
    """Yield the work of every board case that each solution supports, at its true shape.

    What a solution's process says in another form is left out.
    """
    for count in counting.count(solutions):
        with contextlib.suppress(msgspec.ValidationError):
            yield line(count, run, digests[count.solution])


def line(count: Count, run: str, digests: tuple[str, str]) -> Counted:
    """Return the line of one count; its least work is that of all directions up to its own."""
    op, case = count.op, count.case
    upto = DIRECTIONS[: DIRECTIONS.index(count.direction) + 1]
    least = [op.work(case, direction) for direction in upto]
    return Counted(
        schema=SCHEMA,
        run=run,
        solution=count.solution.name,
        peer=count.solution.peer,
        op=op.name,
        case=case.name,
        row=op.twin(case).name,
        params=case.params,
        track=case.track_of(count.direction),
        ranked_by=case.ranked_by,
        direction=count.direction,
        bytes=sum(each.bytes for each in least),
        flops=sum(each.flops for each in least),
        sources=digests[0],
        harness=digests[1],
        steps=msgspec.convert(count.steps, Steps),
    )
