"""The tables and the record of compiled kernels."""

from __future__ import annotations

import pytest

from common import paths
from common.board import compiled
from common.board.markdown import drawn
from common.commands import compile
from common.records import runs, writer
from common.records.lines import SCHEMA, Compiled, Run

FIGURES = {"registers": 30, "local": 0, "shared": 2048, "warps": 4, "instructions": 1100,
           "wide": 0.5, "tensor": 0, "occupancy": 1.0}  # fmt: skip


def line(case="a", target="sm_90", kernel="copy", solution="alice/rope", **changed):
    apart = ("verdict", "reason", "direction")
    reason = {name: changed.pop(name) for name in apart if name in changed}
    return Compiled(
        schema=SCHEMA, run="", solution=solution, op=solution.partition("/")[2], case=case,
        target=target, sources="1", kernel=kernel, figures=FIGURES | changed, **reason,
    )  # fmt: skip


def ended(case, target, reason="interleaved"):
    return line(case, target, kernel="", verdict="UNSUPPORTED", reason=reason)


def test_a_cell_is_the_range_over_all_forms_and_cases_that_are_alike_are_one():
    lines = [line(), line("alike"), line("b", registers=42), line("c", wide=None)]
    (table,) = compiled.tables(lines)
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row == {
        "kernel": "copy", "target": "sm_90", "forms": "3", "regs": "30–42", "local": "0",
        "shared": "2,048", "warps": "4", "instr": "1,100", "wide": "50%", "mma": "0",
        "occ": "100%",
    }  # fmt: skip


def test_each_target_and_kernel_has_a_row_and_the_name_stands_once():
    lines = [line(kernel=kernel, target=target)
             for kernel in ("copy", "add") for target in ("sm_90", "gfx942")]  # fmt: skip
    (table,) = compiled.tables(lines)
    assert [row[:2] for row in table.rows] == [
        ("copy", "sm_90"), ("", "gfx942"), ("add", "sm_90"), ("", "gfx942"),
    ]  # fmt: skip


def test_a_summary_has_a_line_a_kernel_by_direction_and_what_spills_or_fails_first():
    lines = [line(direction="forward"), line("b", "gfx942", registers=42, direction="forward"),
             line(direction="backward", local=16), ended("b", "sm_90"),
             line(kernel="", verdict="COMPILE_ERROR", reason="too large")]  # fmt: skip
    table = compiled.summary(lines)
    rows = [(row[0], row[1], row[2], row[3]) for row in table.rows]
    assert rows == [("rope: copy", "backward", "30", "16"), ("rope: copy", "forward", "30–42", "0")]
    assert compiled.ends(lines, unsupported=False) == [
        "alice/rope: COMPILE_ERROR: too large (a, sm_90)"
    ]
    (other,) = compiled.ends(lines, unsupported=True)
    assert other.startswith("alice/rope: UNSUPPORTED: interleaved (b")


def test_a_footnote_names_the_targets_where_only_some_refuse():
    lines = [line(), line(target="gfx942"), ended("b", "sm_90"), ended("b", "gfx942"),
             ended("c", "gfx942", "no stages"), ended("d", "gfx942", "no stages")]  # fmt: skip
    (table,) = compiled.tables(lines)
    assert table.footnotes == (
        "UNSUPPORTED: interleaved (b)", "UNSUPPORTED: no stages (2 cases, gfx942)",
    )  # fmt: skip


def test_solutions_stand_by_op():
    found = [line(solution=name) for name in ("a/masked_ffn", "b/rope", "a/rope")]
    titles = [table.title for table in compiled.tables(found)]
    assert titles == ["a/rope", "b/rope", "a/masked_ffn"]


# --- the record -----------------------------------------------------------------------------------


def run(name):
    return Run(schema=SCHEMA, run=name, device="cpu", device_name="none", versions={}, absent={})


def test_a_record_takes_the_place_of_the_earlier_one_unless_it_says_the_same(tmp_path):
    for name, lines in (("one", [line()]), ("two", [line(), line("b")]),
                        ("three", [line(), line("b")])):  # fmt: skip
        writer.supersede(tmp_path, run(name), lines)
    found = runs.read(tmp_path)
    assert [each.run for each in found.runs] == ["two"] and found.finished == {"two"}
    assert [(each.case, each.run) for each in found.compiled] == [("a", "two"), ("b", "two")]


@pytest.mark.parametrize("option", ["op", "only", "case", "target", "show"])
def test_a_part_of_the_board_writes_nothing(option):
    whole = dict.fromkeys(("op", "only", "case", "target", "show"))
    assert compile._is_complete(type("Options", (), whole))
    assert not compile._is_complete(type("Options", (), whole | {option: "x"}))


def test_the_page_shows_the_record():
    """`nox -s compile` writes both."""
    known = runs.read(paths.RESULTS / "compiled").compiled
    tables = [text for table in compiled.tables(known) for text in drawn(table)]
    page = (paths.ROOT / "docs" / "compile.md").read_text()
    assert len(tables) > 10 and "\n\n".join(tables) in page
    assert not any(each.files for each in known)
