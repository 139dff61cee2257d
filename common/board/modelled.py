"""Counted work, and modelled rows in the place of measured ones; pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

import msgspec

from common.board import model
from common.board.model import DEFAULT
from common.board.ranking import op_order
from common.board.table import Table, named
from common.peaks import PEAKS, Peak
from common.records.lines import Counted, Estimate, Record
from common.records.runs import Results


def with_modelled_times(results: Results) -> tuple[Results, str]:
    """Return the results with modelled times, and the name of the modelled GPU.

    A twin's row becomes a row of each true case that it stands for. A row that passed and has no
    counted work becomes UNSUPPORTED.

    Return the results unchanged and an empty name if they have measured times or no counted work.
    """
    if results.timed or not results.counted:
        return results, ""
    counts = results.latest_counts
    by_twin: dict[tuple[str, str], dict[str, Counted]] = {}
    for count in counts.values():
        by_twin.setdefault((count.op, count.row), {})[count.case] = count
    rows = []
    for twin in results.latest():
        for name, of_case in by_twin.get((twin.op, twin.case), {}).items():
            row = msgspec.structs.replace(twin, case=name, params=of_case.params, twin=False)
            eager = counts.get((row.op, row.case, row.direction, f"eager/{row.op}"))
            rows.append(_timed(row, counts.get(row.key), eager, PEAKS[DEFAULT]))
    return replace(results, rows=rows), DEFAULT


def _timed(row: Record, counted: Counted | None, eager: Counted | None, gpu: Peak) -> Record:
    """Return the row with modelled times."""
    if row.verdict != "PASSED":
        return row
    if not (counted and eager and (own := _interval(counted, gpu)).value):
        return msgspec.structs.replace(row, verdict="UNSUPPORTED", reason="not counted")
    both, times = {"solution": counted, "eager": eager}, {"solution": own}
    times["eager"] = _interval(eager, gpu)
    limits = model.limits(counted, gpu)
    of_limits = {name: us for name, us in limits.items() if us >= limits["copy"]}
    times |= {name: Estimate(us, us, us) for name, us in of_limits.items()}
    off = model.ERROR["host"]
    host = {name: Estimate(us := model.host_time(each), us * (1 - off), us * (1 + off))
            for name, each in both.items()}  # fmt: skip
    work = {"bytes": counted.bytes, "flops": counted.flops}  # the row has its twin's
    return msgspec.structs.replace(row, gpu=times, host=host, modelled=DEFAULT, **work)


def share(counted: Counted, gpu: Peak) -> float:
    """Return the share of the limit that a call reaches, at most 1; 0 if too little is counted."""
    time = _interval(counted, gpu).value
    return min(max(model.limits(counted, gpu).values()) / time, 1.0) if time else 0.0


def _interval(counted: Counted, gpu: Peak) -> Estimate:
    """Return the GPU time with the model's error, and with what a sample leaves uncertain.

    It is at least the time of a copy, which any right call takes; 0 if all of the interval is less,
    since the sample then has none of the programs that do the work.
    """
    time, limit = model.gpu_time(counted.steps, gpu), model.limits(counted, gpu)["copy"]
    off = sum(each.uncertain * model.gpu_time([each], gpu) for each in counted.launches)
    off += model.ERROR["gpu"] * time
    low, high = max(time - off, limit), time + off
    return Estimate(max(time, limit), low, high) if high > limit else Estimate(0.0, 0.0, 0.0)


# --- counted work over the minimum of any solution ------------------------------------------------

WORK = ("solution", "× least bytes", "× read again", "× least FLOPs", "kernels", "operators")
WORK_NOTE = (
    "bytes are those that reach memory, of each tensor at most its own; read again is what programs"
    " fetch over what the launch reads; FLOPs are of products alone; kernels and operators are of"
    " the case with the most; ~ where the programs of a launch differ too much for the amounts of a"
    " sample to be certain"
)


def work_tables(counts: Iterable[Counted], known: Container[str]) -> list[Table]:
    """Return a table for each op: every known solution's work, as means over its cases."""
    ops: dict[str, dict[str, list[Counted]]] = {}
    for count in counts:
        if count.solution in known:
            ops.setdefault(count.op, {}).setdefault(count.solution, []).append(count)
    return [
        Table(
            f"{op}, counted work",
            WORK,
            tuple(map(_work, solutions.values())),
            (WORK_NOTE,),
            tuple(cases[0] for cases in solutions.values()),
        )
        for op, solutions in sorted(ops.items(), key=lambda item: op_order(item[0]))
    ]


def _work(cases: Sequence[Counted]) -> tuple[str, ...]:
    about = "~" * any(case.is_rough for case in cases)
    return (
        named(cases[0]),
        about + _mean(max(case.moved / case.bytes, 1.0) for case in cases),
        about + _mean(case.read_again for case in cases if case.moved >= case.bytes),
        about + _mean(case.multiplied / max(case.flops, 1) for case in cases),
        str(max(len(case.launches) for case in cases)),
        str(max(len(case.operators) for case in cases)),
    )


def _mean(ratios: Iterable[float]) -> str:
    """Return the geometric mean of the ratios that are not 0, or a dash without one."""
    positive = [ratio for ratio in ratios if ratio]
    return f"{statistics.geometric_mean(positive):.2f}" if positive else "–"
