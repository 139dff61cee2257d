"""Cases that do not fit a device: their lines, and the rows that the board shows without them."""

import pytest
from msgspec.structs import replace

from common.board import markdown, terminal
from common.board.table import About
from common.records import runs
from common.records.lines import SCHEMA, LeftOut, Selection
from common.records.runs import Results
from common.records.writer import RunWriter
from tests.support.boards import RUN, printed, row
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


@pytest.mark.parametrize(("memory", "peak"), [(MEMORY, 3 << 20), (None, None)])
def test_cases_left_out_and_memory_are_read_as_written(tmp_path, memory, peak):
    """Without a GPU no memory is written."""
    file = RunWriter(tmp_path / NAME)
    file.write(RUN)
    file.rows([row(peak_memory=peak)])
    file.write(WIDE)
    file.end(RUN.run, memory)
    file.close()
    results = runs.read(tmp_path)
    assert results.rows == [row(peak_memory=peak)]
    assert results.left_out() == results.left_out_lines == [WIDE]
    assert results.memory == ({"r1": memory} if memory else {})
    text = (tmp_path / NAME).read_text()
    assert ("memory" in text) == bool(memory)


# --- the cases that the board shows ---------------------------------------------------------------

C1, C2 = row(), row(case="c2")
LATER, LATER2 = replace(C1, run="r2"), replace(C2, run="r2")
AGAIN = replace(WIDE, run="r2")
PLOT = replace(WIDE, tier="plot")
PART = run(2, "bob")


@pytest.mark.parametrize(
    ("rows", "line", "of", "expected"),
    [
        pytest.param([C1], WIDE, [run(1)], (["c1"], ["c2"]), id="not on the board"),
        pytest.param([C1], WIDE, [run(1, "bob")], (["c1"], ["c2"]), id="of some solutions"),
        pytest.param([C1, LATER, LATER2], WIDE, [run(1), run(2)], (["c1", "c2"], []),
                     id="a later run with more memory brings it back"),
        pytest.param([C1, C2, LATER], AGAIN, [run(1), run(2)], (["c1"], ["c2"]),
                     id="a run over everything takes its older rows away"),
        pytest.param([C1, C2], AGAIN, [run(1), PART], (["c1", "c2"], []),
                     id="a run over some takes none away: the case fits the device"),
        pytest.param([C1, LATER], WIDE, [run(1), run(2)], (["c1"], []),
                     id="a case that the op no longer has"),
        pytest.param([C1, LATER], WIDE, [run(1), PART], (["c1"], ["c2"]),
                     id="a case that a run over some did not ask"),
        pytest.param([C1, C2], PLOT, [run(1)], (["c1", "c2"], []), id="the plots'"),
    ],
)  # fmt: skip
def test_which_cases_are_left_out(rows, line, of, expected):
    assert shown(rows, [line], *of) == expected


def test_an_interrupted_run_that_leaves_a_case_out_takes_no_rows_away():
    """It may have been stopped because the GPU was busy."""
    results = Results(None, [run(1), run(2)], [C1, C2], {"r1"})
    results.left_out_lines.append(AGAIN)
    assert [each.case for each in results.latest()] == ["c1", "c2"]


# --- the board that names them --------------------------------------------------------------------

ABOUT = {"alice/rope": About("", "s1")}
LINE = "Left out on this device: c2 (needs 9 GiB, 8 GiB free)."


def boards(*lines):
    """LEADERBOARD.md, the README's board and the terminal's, with a row of c1."""
    results = Results(None, [run(1)], [row()], {"r1"})
    results.left_out_lines.extend(lines)
    whole = markdown.leaderboard([results], ABOUT)
    return whole, markdown.board([results], ABOUT), printed(120, terminal.show, results, ABOUT)


def test_every_board_names_the_case_and_no_solution_lacks_it():
    for text in boards(WIDE):
        assert text.count(LINE) == 1
        assert "2.00" in text and "not measured" not in text
    assert not any("Left out" in text for text in boards())


def test_an_op_without_a_case_that_fits_is_on_the_board():
    for text in boards(replace(WIDE, op="masked_ffn")):
        assert "masked_ffn" in text
        assert text.index("alice/rope") < text.rindex("masked_ffn") < text.index(" c2 (needs")


def test_the_leaderboard_names_the_plots_cases_and_the_others_do_not():
    whole, *others = boards(replace(WIDE, tier="plot"))
    assert LINE in whole
    assert not any("Left out" in text for text in others)
