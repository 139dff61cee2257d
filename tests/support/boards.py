"""Made-up rows of a board, and the records of one, with numbers to work out by hand."""

import io
import re
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from common.board.devices import ranked
from common.board.ranking import About
from common.records.lines import SCHEMA, Counted, Estimate, Launch, Record, Run
from common.records.runs import Results

RUN = Run(
    schema=SCHEMA, run="r1", device="cuda", device_name="A GPU", versions={"torch": "2"},
    absent={"fla": "not installed"},
)  # fmt: skip
PARAMS = {"dtype": "float32", "s": 16, "b": 1, "h": 1, "d": 8, "d2": 8}


def summary(given):
    """Of samples, all of which are the number given, or those of a list."""
    return Estimate.of(given if isinstance(given, list) else [given] * 9)


def row(solution="alice/rope", us=10.0, eager=20.0, **fields):
    """A row whose samples are the numbers given, or all those of a list."""
    times = {"solution": us, "eager": eager, "copy": fields.pop("copy", 5.0)}
    if dense := fields.pop("dense", None):
        times["dense"] = dense
    gpu = {name: summary(given) for name, given in times.items()}
    plain = Record(
        schema=SCHEMA, run="r1", solution=solution, op="rope", case="c1", params=PARAMS,
        track="core", ranked_by="gpu", direction="forward", verdict="PASSED", error=0.5, bytes=8,
        flops=9, sources="s1", harness="h1", gpu=gpu,
        host={"solution": summary([1.0]), "eager": summary([1.0])},
    )  # fmt: skip
    return replace(plain, **fields)


def failed(solution, **fields):
    return row(solution, gpu={}, host={}, **{"verdict": "TIMEOUT", "error": None, **fields})


ABOUT = {
    "alice/rope": About("tiles | pipes", "s1"),
    "bob/rope": About("plain", "s2"),
    "eager/rope": About("torch", "s1"),
}
ROWS = [
    row("alice/rope"),
    failed("bob/rope", reason="a | b"),
    row("eager/rope", us=20.0, peer=True),
    row("gone/rope", us=1.0),
]
TIMED = Results(path=Path("a-gpu"), runs=[RUN], rows=ROWS)


def everyone(rows, **notes):
    """The facts of all solutions of these rows, with the notes of some by handle."""
    names = {row.solution: row.solution.partition("/")[0] for row in rows}
    return {name: About(notes.get(handle, "mine"), "s1") for name, handle in names.items()}


def devices(*boards, about=ABOUT):
    """The boards of these records, in their order."""
    return [ranked(each, about) for each in boards]


def printed(width, show, *given, force_terminal=None, **how):
    """The text that a function of `terminal` prints on so wide a terminal."""
    output = io.StringIO()
    show(*given, Console(file=output, width=width, force_terminal=force_terminal), **how)
    return output.getvalue()


def anchors(text):
    """The names that the headings of a page of Markdown can be linked by."""
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def columns(line):
    """The number of bars in a line of a Markdown table that part its columns."""
    return line.replace(r"\|", "").count("|")


def launch(**changed):
    """A launch that copies 256 MiB in programs of 8 KiB."""
    whole = 1 << 27
    fields = {
        "kernel": "copy", "grid": (1 << 15, 1, 1), "fetched": whole, "read": whole,
        "written": whole, "flops": {}, "rounds": 1.0,
    }  # fmt: skip
    return Launch(**fields | changed)


def counted(solution, *steps, **fields):
    """The counts of `c1`, whose twin is `c1-twin`."""
    line = Counted(
        schema=SCHEMA, run="r1", solution=solution, op="rope", case="c1", row="c1-twin",
        params=PARAMS, track="core", ranked_by="gpu", direction="forward", bytes=1 << 28, flops=9,
        sources="s1", harness="h1", steps=list(steps),
    )  # fmt: skip
    return replace(line, **fields)
