"""Cases that do not fit a device: their lines, and the rows that the board shows without them."""

import io
import json

import pytest
from msgspec.structs import replace
from rich.console import Console

from common.board import markdown, terminal
from common.board.table import About
from common.records import runs
from common.records.lines import SCHEMA, LeftOut, Selection
from common.records.runs import Results
from common.records.writer import RunWriter
from tests.support.boards import RUN, row
from tests.support.records import NAME

WIDE = LeftOut(schema=SCHEMA, run="r1", op="rope", case="c2", reason="needs 9 GiB, 8 GiB free")
MEMORY = {"budget": 16 << 30, "harness": 1 << 29, "device": 15 << 30}


def run(number, only=None):
    return replace(RUN, run=f"r{number}", selection=Selection(only=only))


def shown(rows, lines, *of):
    """The cases with rows on the board, and those left out, of the finished runs `of`."""
    results = Results(None, list(of), list(rows), {each.run for each in of})
    results.left_out_lines.extend(lines)
    return [each.case for each in results.latest()], [each.case for each in results.left_out()]


# --- the file -------------------------------------------------------------------------------------


def test_a_case_left_out_the_peak_memory_and_the_harness_memory_are_read_as_written(tmp_path):
    file = RunWriter(tmp_path / NAME)
    file.begin(RUN)
    file.rows([row(peak_memory=3 << 20)])
    file.left_out(WIDE)
    file.end(RUN.run, MEMORY)
    file.close()
    results = runs.read(tmp_path)
    assert results.rows == [row(peak_memory=3 << 20)]
    assert results.left_out() == results.left_out_lines == [WIDE]
    assert results.memory == {"r1": MEMORY}


def test_a_run_without_a_gpu_records_no_memory(tmp_path):
    file = RunWriter(tmp_path / NAME)
    file.begin(RUN)
    file.rows([row()])
    file.end(RUN.run)
    file.close()
    *_, plain, end = map(json.loads, (tmp_path / NAME).read_text().splitlines())
    assert "peak_memory" not in plain
    assert end == {"kind": "end", "schema": SCHEMA, "run": "r1"}
    assert runs.read(tmp_path).memory == {}


# --- the cases that the board shows ---------------------------------------------------------------


def test_a_case_left_out_is_not_on_the_board():
    assert shown([row()], [WIDE], run(1)) == (["c1"], ["c2"])


def test_a_later_run_with_more_memory_brings_the_case_back():
    later = [row(run="r2"), row(run="r2", case="c2")]
    assert shown([row(), *later], [WIDE], run(1), run(2)) == (["c1", "c2"], [])


def test_a_run_over_everything_that_leaves_a_case_out_takes_its_older_rows_away():
    older = [row(), row(case="c2")]
    line = replace(WIDE, run="r2")
    assert shown([*older, row(run="r2")], [line], run(1), run(2)) == (["c1"], ["c2"])


def test_an_interrupted_run_that_leaves_a_case_out_takes_no_rows_away():
    """It may have been stopped because the GPU was busy."""
    results = Results(None, [run(1), run(2)], [row(), row(case="c2")], {"r1"})
    results.left_out_lines.append(replace(WIDE, run="r2"))
    assert [each.case for each in results.latest()] == ["c1", "c2"]


@pytest.mark.parametrize("only", [None, "bob"])
def test_a_case_without_rows_is_left_out_whatever_the_run_measured(only):
    assert shown([row()], [WIDE], run(1, only)) == (["c1"], ["c2"])


def test_a_run_over_some_solutions_takes_no_rows_away():
    """The case fits the device: that run found less memory free."""
    both = [row(), row(case="c2")]
    line = replace(WIDE, run="r2")
    assert shown(both, [line], run(1), run(2, "bob")) == (["c1", "c2"], [])


def test_a_case_that_the_op_no_longer_has_is_not_left_out():
    assert shown([row(), row(run="r2")], [WIDE], run(1), run(2)) == (["c1"], [])
    part = run(2, "bob")
    assert shown([row(), row(run="r2")], [WIDE], run(1), part) == (["c1"], ["c2"])


def test_the_last_line_of_a_case_is_shown():
    again = replace(WIDE, run="r2", reason="needs 9 GiB, 7 GiB free")
    results = Results(None, [run(1), run(2)], [row(run="r2")], {"r1", "r2"})
    results.left_out_lines.extend([WIDE, again])
    assert results.left_out() == [again]
    assert results.of_op("rope").left_out() == [again]
    assert results.of_op("masked_ffn").left_out() == []


def test_the_plots_cases_left_out_are_not_the_boards():
    plot = replace(WIDE, tier="plot")
    assert shown([row(), row(case="c2")], [plot], run(1)) == (["c1", "c2"], [])


# --- the board that names them --------------------------------------------------------------------

ABOUT = {"alice/rope": About("", "s1")}
LINE = "Left out on this device: c2 (needs 9 GiB, 8 GiB free)."


def boards(*lines):
    """LEADERBOARD.md, the README's board and the terminal's, with a row of c1."""
    results = Results(None, [run(1)], [row()], {"r1"})
    results.left_out_lines.extend(lines)
    output = io.StringIO()
    terminal.show(results, ABOUT, Console(file=output, width=120))
    whole = markdown.leaderboard([results], ABOUT)
    return whole, markdown.board([results], ABOUT), output.getvalue()


def test_every_board_names_the_case_and_no_solution_lacks_it():
    for text in boards(WIDE):
        assert text.count(LINE) == 1
        assert "2.00" in text and "not measured" not in text
    assert not any("Left out" in text for text in boards())


def test_an_op_without_a_case_that_fits_is_on_the_board():
    for text in boards(replace(WIDE, op="masked_ffn")):
        assert "masked_ffn" in text
        assert text.index("alice/rope") < text.index("masked_ffn") < text.index(" c2 (needs")


def test_the_leaderboard_names_the_plots_cases_and_the_others_do_not():
    whole, *others = boards(replace(WIDE, tier="plot"))
    assert LINE in whole
    assert not any("Left out" in text for text in others)


def test_a_reason_cannot_become_markup():
    whole, page, terminal = boards(replace(WIDE, reason="<b>[red]\n\n# big"))
    for text in (whole, page):
        assert "<b>" not in text and "big" in text and "\n# big" not in text
    assert "[red]" in terminal
